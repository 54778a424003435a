"""What each value is, told from the code alone: kind, library, device, dtype, and the call that made it."""
