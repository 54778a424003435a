"""What the observers of both frameworks share: source lines, HLO graphs, compile records, the guard."""
