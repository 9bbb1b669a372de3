"""The pure core: every decision of hub and spoke, without await, clock, file, socket or log."""
