"""Mistakes of the harness's own code by name, for sessions: those that are `live` are run there."""

from mistakes import first_steps, gates

# of two of one name a session takes the one that its gates find
BY_NAME = {
    mistake.name: mistake
    for mistake in (*first_steps.MISTAKES, *gates.MISTAKES, gates.ENGINE, gates.NAN)
}
LIVE = tuple(mistake for mistake in BY_NAME.values() if mistake.live)
