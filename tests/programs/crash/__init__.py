"""Real processes under real faults, and whether the checks would notice a broken promise."""
