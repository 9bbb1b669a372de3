"""Emulated WAN, emulated training job and dataset builder: what demo and bench stand on."""
