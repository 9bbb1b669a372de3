"""One file per way to fill a port, with memory.py and faulty.py for tests behind the ports."""
