"""How many files this process may have open: every connection is one."""

import resource


def raise_limit(wanted: int) -> int:
    """Raise the limit of open files as far as it is wanted and allowed; return the limit in force.

    It is not raised further than wanted: child processes inherit it, and some programs take time
    or memory in proportion to it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if allowed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(allowed, soft)
