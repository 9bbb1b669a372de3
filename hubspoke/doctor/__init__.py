"""`hubspoke doctor`: what on this host or in this configuration will hurt, and the remedy."""
