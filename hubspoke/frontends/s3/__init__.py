"""The S3 door of hub and spoke."""
