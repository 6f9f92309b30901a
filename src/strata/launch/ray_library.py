"""The library Ray, as this project uses it: without usage statistics, and with a hint where it is
missing. Everybody else imports it from here."""

from strata import config
from strata.errors import SettingError

config.tell_ray()

try:
    import ray
    from ray.exceptions import ActorUnavailableError, RayActorError, RayError
    from ray.util import get_node_ip_address
    from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ImportError as missing:
    raise SettingError(
        f"Ray is missing: {missing}", hint="pip install 'strata-runtime[ray]'"
    ) from None

__all__ = [
    "ActorUnavailableError",
    "PlacementGroup",
    "PlacementGroupSchedulingStrategy",
    "RayActorError",
    "RayError",
    "get_node_ip_address",
    "placement_group",
    "ray",
    "remove_placement_group",
]
