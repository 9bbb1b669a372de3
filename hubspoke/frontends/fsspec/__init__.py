"""The fsspec door: `hubspoke://BUCKET/KEY`. Needs the package fsspec (`hubspoke[fsspec]`)."""

from hubspoke.frontends.fsspec.filesystem import HubSpokeFileSystem as HubSpokeFileSystem
