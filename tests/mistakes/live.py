"""Mistakes that are planted in a session of their own: one of each kind, a place and a stage."""

from mistakes import first_steps, gates

LIVE = {
    mistake.name: mistake
    for mistake in (*first_steps.MISTAKES, *gates.MISTAKES, gates.ENGINE, gates.NAN)
    if mistake.live
}
