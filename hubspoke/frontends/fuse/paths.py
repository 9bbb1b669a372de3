"""Which keys are paths. Decides by the text alone, and never changes a name to make it one.

A key is shown at MOUNT/BUCKET/KEY, its slashes being folders. What cannot be shown so stays
reachable over S3.
"""

from hubspoke.frontends.fuse.protocol import NAME_MAX

OF_FOLDER = "a folder of that name is shown in its place"


def component_fault(component: str) -> str | None:
    """Why no file or folder can be called so; None if one can."""
    if not component:
        return "an empty part between slashes"
    if component in (".", ".."):
        return f"a part {component!r}, which means another folder"
    size = len(component.encode())
    if size > NAME_MAX:
        return f"a part of {size} bytes, at most {NAME_MAX} can be shown"
    return None


def key_fault(key: str, size: int) -> str | None:
    """Why the object cannot be shown at its key's path, by its name and size (bytes); None: it
    can, unless a key below it makes it a folder (OF_FOLDER). A marker of no size is a folder."""
    parts = key.split("/")
    if not parts[-1] and len(parts) > 1:
        parts.pop()
        if size:
            return "a file's name cannot end in a slash"
    for part in parts:
        if (fault := component_fault(part)) is not None:
            return fault
    return None


def may_be_shadowed(key: str, following: str | None) -> bool | None:
    """Whether keys below `key` make it a folder, told by the key that follows it in order, None:
    there is none. Returns None where that does not tell."""
    if following is None:
        return False
    below = key + "/"
    if following >= below:
        return following.startswith(below)
    return None
