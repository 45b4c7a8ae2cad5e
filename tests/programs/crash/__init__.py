"""Real processes under real faults, and whether those who judge them would notice."""
