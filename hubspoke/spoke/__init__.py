"""The spoke's asyncio shell: collects facts, calls the core, executes its effects."""
