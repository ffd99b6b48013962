"""What an emulated run tells: where the time went and what to do about it."""
