"""The control ports as a stranger's tools see them, without any generated code: health, reflection, and every call of
docs/admin.md with messages that are built from the reflected descriptors, as grpcurl and grpc_cli do."""

import json
import os
import re
import shlex
import time

# Only this thread and Python's own subprocess module fork; gRPC's handlers for it would only complain.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory, text_format

from cluster import DEADLINE, Cluster, TestCase, train_args

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "admin.md")
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


def _reflection_messages():
    """The part of gRPC's reflection.proto that is used here; its Python package is not in Debian."""
    file = descriptor_pb2.FileDescriptorProto(name="reflection.proto", package="grpc.reflection.v1alpha",
                                              syntax="proto3")
    field = descriptor_pb2.FieldDescriptorProto

    def message(name, *fields):
        added = file.message_type.add(name=name)
        for number, field_name, kind, label in fields:
            of_message = isinstance(kind, str)
            added.field.add(name=field_name, number=number, label=label,
                            type=field.TYPE_MESSAGE if of_message else kind,
                            type_name=".grpc.reflection.v1alpha." + kind if of_message else None)
        return added

    one, many, text = field.LABEL_OPTIONAL, field.LABEL_REPEATED, field.TYPE_STRING
    request = message("ServerReflectionRequest", (3, "file_by_filename", text, one),
                      (4, "file_containing_symbol", text, one), (7, "list_services", text, one))
    request.oneof_decl.add(name="message_request")
    for each in request.field:
        each.oneof_index = 0
    message("FileDescriptorResponse", (1, "file_descriptor_proto", field.TYPE_BYTES, many))
    message("ServiceResponse", (1, "name", text, one))
    message("ListServiceResponse", (1, "service", "ServiceResponse", many))
    message("ErrorResponse", (1, "error_code", field.TYPE_INT32, one), (2, "error_message", text, one))
    message("ServerReflectionResponse", (4, "file_descriptor_response", "FileDescriptorResponse", one),
            (6, "list_services_response", "ListServiceResponse", one), (7, "error_response", "ErrorResponse", one))
    return message_factory.GetMessages([file])


MESSAGES = _reflection_messages()
Request = MESSAGES["grpc.reflection.v1alpha.ServerReflectionRequest"]
Response = MESSAGES["grpc.reflection.v1alpha.ServerReflectionResponse"]


class Reflected:
    """A gRPC port, and what it says of itself."""

    def __init__(self, address):
        self._channel = grpc.insecure_channel(address)
        self._pool = descriptor_pool.DescriptorPool()
        self._known = set()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._channel.close()

    def _ask(self, **request):
        call = self._channel.stream_stream(REFLECTION, request_serializer=Request.SerializeToString,
                                           response_deserializer=Response.FromString)
        (answer,) = call(iter([Request(**request)]), timeout=DEADLINE, wait_for_ready=True)
        if answer.HasField("error_response"):
            raise LookupError("%s: %s" % (request, answer.error_response.error_message))
        return answer

    def services(self):
        return {service.name for service in self._ask(list_services="").list_services_response.service}

    def _learn(self, **request):
        """Adds a file to the pool, after those that it imports."""
        for data in self._ask(**request).file_descriptor_response.file_descriptor_proto:
            file = descriptor_pb2.FileDescriptorProto.FromString(data)
            if file.name in self._known:
                continue
            self._known.add(file.name)
            for name in file.dependency:
                self._learn(file_by_filename=name)
            self._pool.Add(file)

    def service(self, name):
        self._learn(file_containing_symbol=name)
        return self._pool.FindServiceByName(name)

    def call(self, service, method, fill=lambda message: None):
        """The answer; of a stream the first one."""
        described = self.service(service).methods_by_name[method]
        factory = message_factory.MessageFactory(self._pool)
        request, response = (factory.GetPrototype(t) for t in (described.input_type, described.output_type))
        asked = request()
        fill(asked)
        file = descriptor_pb2.FileDescriptorProto()
        described.containing_service.file.CopyToProto(file)
        streams = {m.name: m.server_streaming for s in file.service if s.name == described.containing_service.name
                   for m in s.method}[method]
        kind = self._channel.unary_stream if streams else self._channel.unary_unary
        call = kind("/%s/%s" % (service, method), request_serializer=request.SerializeToString,
                    response_deserializer=response.FromString)
        answer = call(asked, timeout=DEADLINE, wait_for_ready=True)
        if not streams:
            return answer
        first = next(answer)
        answer.cancel()
        return first


def documented_commands(program):
    """Words of each command of docs/admin.md that begins with `program`, without it."""
    with open(PAGE) as page:
        return [shlex.split(line)[1:] for line in page if line.startswith(program + " ")]


class ControlPorts(TestCase):

    def server_address(self, cluster):
        return "127.0.0.1:" + cluster.servers[0].wait_for(r"control on port (\d+)").group(1)

    def test_health_of_scheduler_and_server_is_serving(self):
        with Cluster(servers=1) as cluster:
            for address in (cluster.address, self.server_address(cluster)):
                with Reflected(address) as port:
                    answer = port.call("grpc.health.v1.Health", "Check")
                    self.assertEqual(json_format.MessageToDict(answer), {"status": "SERVING"}, address)

    def test_health_of_an_unknown_service_is_not_found(self):
        with Cluster(servers=0) as cluster, Reflected(cluster.address) as port:
            with self.assertRaises(grpc.RpcError) as raised:
                port.call("grpc.health.v1.Health", "Check", lambda message: setattr(message, "service", "nobody"))
            self.assertEqual(raised.exception.code(), grpc.StatusCode.NOT_FOUND)

    def test_reflection_lists_the_services(self):
        common = {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
        with Cluster(servers=1) as cluster:
            with Reflected(cluster.address) as port:
                self.assertLessEqual(common | {"sluice.proto.Admin", "sluice.proto.Control"}, port.services())
                with self.assertRaises(LookupError):
                    port.service("sluice.proto.Nothing")
            with Reflected(self.server_address(cluster)) as port:
                self.assertLessEqual(common, port.services())
                self.assertNotIn("sluice.proto.Admin", port.services())

    def test_the_page_names_every_method(self):
        with open(PAGE) as page:
            documented = set(re.findall(r"^\| `([A-Z][a-z]\w+)` \|", page.read(), re.MULTILINE))
        with Cluster(servers=0) as cluster, Reflected(cluster.address) as port:
            self.assertEqual(documented, set(port.service("sluice.proto.Admin").methods_by_name))

    def test_admin_answers_a_request_made_from_its_reflected_descriptor(self):
        with Cluster(servers=1) as cluster:
            cluster.scheduler.wait_for("server_registered")
            with Reflected(cluster.address) as port:
                answer = json_format.MessageToDict(port.call("sluice.proto.Admin", "GetCluster"))
                shown = json_format.MessageToDict(port.call("sluice.proto.Admin", "GetConfig"))
            self.assertEqual([member["id"] for member in answer["members"]], ["server-0"])
            port_setting = {"key": "node.port", "value": "0", "source": "flag"}
            self.assertIn(port_setting, shown["values"])


class Documented(TestCase):
    """The examples of docs/admin.md, but for their address, by this file's own calls: neither program is in Debian."""

    def with_job_mnist(self):
        cluster = Cluster(servers=1)
        self.addCleanup(cluster.__exit__)
        self.train(cluster, workers=1, arguments=train_args(cluster, workers=1, epochs=1, job__name="mnist"))
        return cluster

    def test_grpcurl_examples(self):
        commands = documented_commands("grpcurl")
        self.assertGreaterEqual(len(commands), 5)
        cluster = self.with_job_mnist()
        for words in commands:
            with self.subTest(" ".join(words)), Reflected(cluster.address) as port:
                self.assertEqual(words.pop(0), "-plaintext")
                body = "{}"
                if words[0] == "-d":
                    body = words[1]
                    del words[:2]
                self.assertEqual(words.pop(0), "127.0.0.1:7700")
                if words[0] == "list":
                    self.assertIn(words[1], port.services())
                    self.assertTrue(port.service(words[1]).methods)
                    continue
                service, _, method = words[0].partition("/")
                answer = port.call(service, method, lambda message, body=body: json_format.Parse(body, message))
                self.assertTrue(json.loads(json_format.MessageToJson(answer)), "an empty answer")

    def test_grpc_cli_examples(self):
        commands = documented_commands("grpc_cli")
        self.assertGreaterEqual(len(commands), 1)
        cluster = self.with_job_mnist()
        for words in commands:
            with self.subTest(" ".join(words)), Reflected(cluster.address) as port:
                call, address, name, body = words
                self.assertEqual((call, address), ("call", "127.0.0.1:7700"))
                service, _, method = name.rpartition(".")
                answer = port.call(service, method, lambda message, body=body: text_format.Parse(body, message))
                self.assertTrue(answer.ListFields(), "an empty answer")


class Links(TestCase):
    """What `sluicectl links` shows while a job runs."""

    def links(self, cluster, wanted):
        """The paths that members report, by (role, rank), once `wanted` holds for them."""
        end = time.monotonic() + DEADLINE
        while True:
            members = json.loads(cluster.ctl("links", "--json"))["members"]
            found = {(member["role"], member["rank"]): member["report"]["paths"] for member in members if "report" in member}
            if wanted(found):
                return found
            self.assertLess(time.monotonic(), end, "members report %r" % found)

    def test_links_over_tcp_are_one_path_that_says_why(self):
        with Cluster(servers=1) as cluster:
            for rank in (0, 1):
                cluster.start_worker(rank, train_args(cluster, epochs=100000, data__transport="tcp"))
            found = self.links(cluster, lambda f: len(f.get(("ROLE_SERVER", -1), [])) == 2 and all(
                f.get(("ROLE_WORKER", rank)) and int(f["ROLE_WORKER", rank][0]["bytes_out"]) > 0 for rank in (0, 1)))
            for rank in (0, 1):
                (path,) = found["ROLE_WORKER", rank]
                self.assertEqual((path["kind"], path["rail"], path["peer"]), ("tcp", "base", "server server-0 loop 0"))
                self.assertEqual(path["note"], "TCP was asked for (data.transport)")
            self.assertEqual([path["kind"] for path in found["ROLE_SERVER", -1]], ["tcp", "tcp"])
            self.assertRegex(cluster.ctl("links"), r"test rank 1 +server server-0 loop 0 +0 +tcp +base +127.0.0.1:\d+")

    def test_a_second_network_is_a_second_path_of_the_same_link(self):
        server = ["--node.listen=0.0.0.0", "--node.advertise=127.0.0.1", "--node.rails=127.0.0.2", "--rdma.chunk_bytes=65536"]
        with Cluster(servers=1, server_args=server) as cluster:
            cluster.start_worker(0, train_args(cluster, workers=1, epochs=100000, hidden=16384, data__transport="tcp",
                                               rdma__chunk_bytes=65536))
            found = self.links(cluster, lambda f: len(f.get(("ROLE_WORKER", 0), [])) == 2 and all(
                int(path["bytes_out"]) > 0 and int(path["chunks"]) > 0 for path in f["ROLE_WORKER", 0]))
            base, further = found["ROLE_WORKER", 0]
            self.assertEqual((base["kind"], base["rail"], further["kind"], further["rail"]), ("tcp", "base", "tcp", "further"))
            self.assertEqual(base["link"], further["link"])
            self.assertEqual(further["address"], "127.0.0.2")
