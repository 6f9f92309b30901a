"""Which process listens on a port of this host."""

import psutil


def port_holder(port: int) -> str:
    """The process that listens on a TCP port, as `NAME (pid N)`; empty if it cannot be seen.

    The processes of other users are not visible without root.
    """
    try:
        connections = psutil.net_connections("tcp")
    except (psutil.Error, OSError):
        return ""
    for each in connections:
        listens = each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port
        if listens and each.pid:
            try:
                return f"{psutil.Process(each.pid).name()} (pid {each.pid})"
            except psutil.Error:
                return f"pid {each.pid}"
    return ""
