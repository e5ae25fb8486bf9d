"""Images as servers of the Open Inference Protocol, and clients that call them.

Always holds: no rank of a run imports anything of this; clients (`remote_models`) need no extra,
and only `grpc_service` and `grpc_messages` the extra `grpc`.
"""
