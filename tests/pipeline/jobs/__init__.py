"""The jobs: audit, replay, restore points, reports, and checks of histories."""
