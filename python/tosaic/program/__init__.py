"""Programs that run: models, overrides, archives and samples."""
