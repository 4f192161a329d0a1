"""Questions asked of saved or simulated rollouts, offline; nothing here decides a verdict.

``pools``      N prompts with K rollouts each: simulated on real texts, or read from the run store
``baselines``  which baseline leaves the least noise on a pool, by the registered definition
``plot``       the same as a picture
"""
