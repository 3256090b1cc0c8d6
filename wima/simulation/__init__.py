"""The round loop of a federation, its cohorts and schedules."""
