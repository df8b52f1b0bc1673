"""The main job: a year of flights out of New York as the change stream that they once were."""
