"""What every other package stands on: errors, types, spaces, seeds, schedules."""
