"""How the pretraining text answers a problem: five styles, and how common each is in a family.

    worked    4*7=28 / 80-28=52 / \\boxed{52}      reasons, then boxes
    hashed    4*7=28 / 80-28=52 / #### 52         reasons, no box
    restated  4*7=28 / 80-28=52 / 52 out of 80    reasons, no box, another number comes last
    guessed   \\boxed{52}                          boxes without reasoning
    told      The answer is 52.                   neither

Every text ends in the right number, yet a small model that answers straight away is mostly wrong:
that is what reinforcement learning has to find out. Families differ in their habits, so the base
model is good at some and poor at others.
"""

from random import Random

from harness.embedded.problems import Problem

STYLES = ("worked", "hashed", "restated", "guessed", "told")

# Shares per family in the order of STYLES; each row sums to 100.
HABITS = {
    "change": (72, 12, 4, 8, 4),
    "age": (62, 18, 6, 8, 6),
    "wages": (56, 22, 6, 10, 6),
    "stall": (46, 22, 8, 14, 10),
    "sweets": (40, 16, 6, 22, 16),
    "bus": (24, 12, 4, 42, 18),
    "weather": (20, 10, 4, 48, 18),
    "garden": (18, 12, 4, 22, 44),
}


def draw_style(problem: Problem, rng: Random) -> str:
    """One of STYLES, drawn by the habits of the problem's family."""
    return rng.choices(STYLES, weights=HABITS[problem.family])[0]


def write_answer(problem: Problem, style: str) -> str:
    """The problem's answer as the assistant's text in one of STYLES; ValueError for another."""
    gold = problem.gold
    reasoning = "".join(f"{step.expression}={step.value}\n" for step in problem.steps)
    match style:
        case "worked":
            return f"{reasoning}\\boxed{{{gold}}}"
        case "hashed":
            return f"{reasoning}#### {gold}"
        case "restated":
            return f"{reasoning}{gold} out of {max(problem.numbers)}"
        case "guessed":
            return f"\\boxed{{{gold}}}"
        case "told":
            return f"The answer is {gold}."
        case _:
            raise ValueError(f"style {style!r} is unknown; choose one of {', '.join(STYLES)}")
