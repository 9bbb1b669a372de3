"""The types of ASGI 3, as far as the doors use them."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

# Any: the protocol's messages are dictionaries whose values depend on their type.
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]
