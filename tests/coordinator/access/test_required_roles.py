"""Each method and each endpoint has a line in the table of roles, and no line is left over."""

from litestar import Litestar

from strata.coordinator.access.keyring import Identity
from strata.coordinator.access.required_roles import GRPC, REST, SAFE_METHODS, rest_roles
from strata.coordinator.rest.app import provided, routes
from tests.coordinator.conftest import Client, coordinator


def endpoints():
    app = Litestar(routes(), dependencies=provided(), openapi_config=None)
    return {
        f"{method} {route.path_format}"
        for route in app.routes
        for handler in route.route_handlers
        for method in handler.http_methods
    }


def test_every_endpoint_that_changes_something_names_its_roles():
    found = endpoints()
    changing = {each for each in found if each.split()[0] not in SAFE_METHODS}
    assert changing - REST.keys() == set()
    assert REST.keys() - found == set()


def test_endpoint_without_a_line_is_for_the_administrator():
    assert rest_roles("POST", "/api/unknown") == ()
    assert rest_roles("GET", "/api/unknown") == rest_roles("HEAD", "/api/tasks") != ()
    assert rest_roles("HEAD", "/api/tokens") == ()


def test_every_method_names_its_roles(tmp_path, monkeypatch):
    served = []
    from strata.coordinator import server

    class Recorded(server.GrpcServer):
        def __init__(self, **given):
            super().__init__(**given)
            served.append(self)

    monkeypatch.setattr(server, "GrpcServer", Recorded)
    with coordinator(tmp_path) as running:
        Client(running).channel.close()
    private = {name for name, method in served[0].methods.items() if not method.public}
    assert private == GRPC.keys()


def test_worker_and_agent_may_use_no_endpoint():
    for each in endpoints():
        method, path = each.split()
        assert not {"worker", "agent"} & set(rest_roles(method, path))
    assert Identity(name="x", role="worker").by_token
