"""The catalogue of planted mistakes: data by the way in which they are run, a runner for each way.

| way | planted in | runner |
| --- | --- | --- |
| `evidence`, `records` | stored evidence and a pilot's records | audit/test_planted_mistakes.py |
| `first_steps` | the loop, over doubles | training/test_recorded_steps.py |
| `gates` | the loop, over doubles, the pilot's gates | protocol/test_planted_gates.py |
| `whole_run` | the loop, over doubles, to the verdict | protocol/test_planted_results.py |
| `scale` | the scale's file | protocol/test_planted_gates.py |

One of each kind that is `live` is planted in a session of pytest too: end_to_end/.
"""
