"""The protocol of a card, stage by stage, without pytest: what is produced, kept and checked."""
