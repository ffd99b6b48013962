"""Running Programs: validation, interpretation, fuel."""
