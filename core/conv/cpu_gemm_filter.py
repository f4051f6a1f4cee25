from clgraft.core.errors import Declined


def plan(problem, context):
    raise Declined("later")
