"""Small traces of Kineto and Chakra, written by hand, for the tests of traces."""

import json


def chakra_messages():
    """Return the classes of `GlobalMetadata` and `Node`, from their definition and not from ours."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    definition = {
        "Uint64List": [("values", 1, field.TYPE_UINT64, True)],
        "IOInfo": [("values", 1, field.TYPE_STRING, False), ("shapes", 2, field.TYPE_STRING, False)],
        "AttributeProto": [
            ("name", 1, field.TYPE_STRING, False),
            ("doc_string", 2, field.TYPE_STRING, False),
            ("double_val", 3, field.TYPE_DOUBLE, False),
            ("int32_val", 7, field.TYPE_INT32, False),
            ("int64_val", 9, field.TYPE_INT64, False),
            ("uint64_val", 13, field.TYPE_UINT64, False),
            ("uint64_list", 14, "Uint64List", False),
            ("sint64_val", 17, field.TYPE_SINT64, False),
            ("fixed64_val", 21, field.TYPE_FIXED64, False),
            ("bool_val", 27, field.TYPE_BOOL, False),
            ("string_val", 29, field.TYPE_STRING, False),
        ],
        "GlobalMetadata": [("version", 1, field.TYPE_STRING, False), ("attr", 2, "AttributeProto", True)],
        "Node": [
            ("id", 1, field.TYPE_UINT64, False),
            ("name", 2, field.TYPE_STRING, False),
            ("type", 3, field.TYPE_INT32, False),
            ("ctrl_deps", 4, field.TYPE_UINT64, True),
            ("data_deps", 5, field.TYPE_UINT64, True),
            ("start_time_micros", 6, field.TYPE_UINT64, False),
            ("duration_micros", 7, field.TYPE_UINT64, False),
            ("inputs", 8, "IOInfo", False),
            ("outputs", 9, "IOInfo", False),
            ("attr", 10, "AttributeProto", True),
        ],
    }
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package="chakra", syntax="proto3")
    for name, fields in definition.items():
        message = file.message_type.add(name=name)
        for label, number, kind, is_list in fields:
            one = message.field.add(name=label, number=number, label=3 if is_list else 1)
            if isinstance(kind, str):
                one.type, one.type_name = field.TYPE_MESSAGE, f".chakra.{kind}"
            else:
                one.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return [
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"chakra.{name}"))
        for name in ("GlobalMetadata", "Node")
    ]


def delimited(message):
    content = message.SerializeToString()
    length, head = len(content), b""
    while length > 127:
        head, length = head + bytes([length & 127 | 128]), length >> 7
    return head + bytes([length]) + content


def event(name, category, start, duration, thread=1, **args):
    times = {"ts": start, "dur": duration}
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, **times, "args": args}


SHAPES = {"Input Dims": [[1000]], "Input type": ["float"]}
STEP = [
    event("aten::mm", "cpu_op", 0, 40),
    event("autograd::engine::evaluate_function: MmBackward", "cpu_op", 50, 40),
    event("gloo:all_reduce", "user_annotation", 80, 50, 2, **SHAPES),
]


def kineto_of(folder, *more):
    job = {"rank": 0, "world_size": 2, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]}
    path = folder / "rank0.json"
    path.write_text(json.dumps({"distributedInfo": job, "traceEvents": [*STEP, *more]}))
    return path
