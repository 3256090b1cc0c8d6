"""The round loop, with its cohorts and schedules."""
