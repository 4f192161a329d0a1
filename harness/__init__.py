"""An experiment harness on pytest: a card goes in, a verdict comes out."""
