"""The S3 door: a subset of the S3 REST API over a Reader and, at a hub, a Writer."""

from hubspoke.frontends.s3.app import S3App
from hubspoke.frontends.s3.tuning import S3DoorTuning

__all__ = ["S3App", "S3DoorTuning"]
