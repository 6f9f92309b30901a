// The two services that gRPC itself describes, as far as they are asked here: proto-loader takes
// descriptions as JSON, so no files of theirs are needed.
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

const field = (type, id, rule) => (rule ? { type, id, rule } : { type, id });
const OPTIONS = { keepCase: true, enums: String, defaults: true, oneofs: true };

const HEALTH = {
  HealthCheckRequest: { fields: { service: field("string", 1) } },
  Status: { values: { UNKNOWN: 0, SERVING: 1, NOT_SERVING: 2, SERVICE_UNKNOWN: 3 } },
  HealthCheckResponse: { fields: { status: field("Status", 1) } },
  Health: {
    methods: {
      Check: { requestType: "HealthCheckRequest", responseType: "HealthCheckResponse" },
    },
  },
};

const REFLECTION = {
  ServerReflectionRequest: {
    fields: { file_containing_symbol: field("string", 4), list_services: field("string", 7) },
  },
  ServerReflectionResponse: {
    fields: {
      file_descriptor_response: field("FileDescriptorResponse", 4),
      list_services_response: field("ListServiceResponse", 6),
    },
  },
  FileDescriptorResponse: { fields: { file_descriptor_proto: field("bytes", 1, "repeated") } },
  ListServiceResponse: { fields: { service: field("ServiceResponse", 1, "repeated") } },
  ServiceResponse: { fields: { name: field("string", 1) } },
  ServerReflection: {
    methods: {
      ServerReflectionInfo: {
        requestType: "ServerReflectionRequest",
        requestStream: true,
        responseType: "ServerReflectionResponse",
        responseStream: true,
      },
    },
  },
};

function client(path, types, service, address) {
  const nested = path.split(".").reduceRight((inner, name) => ({ [name]: { nested: inner } }), types);
  const methods = loader.fromJSON({ nested }, OPTIONS)[`${path}.${service}`];
  const Client = grpc.makeGenericClientConstructor(methods, service);
  return new Client(address, grpc.credentials.createInsecure());
}

async function reflected(address) {
  const reflection = client("grpc.reflection.v1", REFLECTION, "ServerReflection", address);
  const stream = reflection.ServerReflectionInfo();
  stream.write({ list_services: "*" });
  stream.write({ file_containing_symbol: "strata.v1.Coordinator" });
  stream.end();
  const answers = [];
  for await (const answer of stream) answers.push(answer);
  reflection.close();
  return {
    services: answers[0].list_services_response.service.map((service) => service.name),
    files: answers[1].file_descriptor_response.file_descriptor_proto.map((file) =>
      file.toString("base64"),
    ),
  };
}

export async function healthAndReflection(address, ask) {
  const health = client("grpc.health.v1", HEALTH, "Health", address);
  const answer = await ask(health, "Check", { service: "strata.v1.Coordinator" });
  health.close();
  return { health: answer.status, ...(await reflected(address)) };
}
