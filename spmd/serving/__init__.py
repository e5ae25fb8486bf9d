"""Images as servers of the Open Inference Protocol, and clients that call them.

Always holds: no rank of a run imports anything of this; only `web_application` and `serve_command`
need the packages of the extra `serve`.
"""
