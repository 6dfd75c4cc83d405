/* Operators, subgraph backends and devices from outside the library, in C. A plugin needs this header only: it calls the library through
 * the table `treadle_host`, so that it links to nothing. Structs that a plugin fills start with their size; fields are only ever added at
 * the end. A callback reports a failure by returning 0 after `host->fail` (or by returning NULL, where it returns a pointer); it must not
 * throw. Callbacks may be called from several threads at once. docs/add-a-backend.md and docs/add-a-device.md have walks through.
 */
#ifndef TREADLE_PLUGIN_H_
#define TREADLE_PLUGIN_H_

#include <stddef.h>
#include <stdint.h>

#include "treadle/treadle.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TREADLE_PLUGIN_VERSION 6U
#define TREADLE_PLUGIN_MAX_RANK 16
/* Returned by an operator's `run` in place of 1 if it is not done yet. The parallel executor goes on with other nodes. */
#define TREADLE_PENDING 2

typedef struct treadle_host treadle_host;
typedef struct treadle_node treadle_node;         /* a node of a graph; lives as long as the callback that got it, or its subgraph */
typedef struct treadle_subgraph treadle_subgraph; /* what a backend compiles; lives until `compile` returns */
typedef struct treadle_gradient treadle_gradient; /* a node whose gradient is asked for; lives until `gradient` returns */
typedef struct treadle_call treadle_call;         /* one execution; lives until `run` returns; a pending one until `call_complete` */

/* What is known of a value before a run. A rank of -1, and an extent of -1, is unknown. `dtype` is a treadle_dtype. */
typedef struct treadle_value_type {
  int32_t dtype;
  int32_t rank;
  int64_t dims[TREADLE_PLUGIN_MAX_RANK];
} treadle_value_type;

/* A contiguous tensor in a run. `data` is NULL for strings, which `call_string` reads. */
typedef struct treadle_tensor_view {
  int32_t dtype;
  int32_t rank;
  const int64_t* dims;
  const void* data;
} treadle_tensor_view;

/* A value of the graph in which gradients are written. */
typedef uint32_t treadle_graph_value;
#define TREADLE_NO_VALUE UINT32_MAX

/* Facts about an operator, for treadle_operator.facts. Without them the library assumes nothing. */
/* An element of the output is a function of the elements at its place, of operands that broadcast: the operator may get its operands with
 * axes in another order, and in float32 where the model has 16-bit floats. One output, no attribute that counts axes. */
#define TREADLE_POINTWISE 1U
/* Where input 0 is 0, so is the output; of two operands, if the other is finite and not 0. Attributes do not change that. */
#define TREADLE_KEEPS_ZEROS 2U

/* A custom operator. Its kernel is called with its operands' real shapes and asks for its outputs with theirs. */
typedef struct treadle_operator {
  uint32_t size; /* sizeof(treadle_operator) */
  const char* domain;
  const char* op_type;
  int32_t min_inputs, max_inputs; /* max_inputs -1: any number */
  int32_t num_outputs;
  int32_t deterministic; /* 0: never folded or merged with an equal node */
  void* user;            /* given to every callback; must outlive the process' last session */
  /* Optional. Fills one entry an output (dtype 0 and rank -1 where unknown). Without it the outputs' types are known in a run only. */
  int (*infer)(void* user, const treadle_host* host, const treadle_node* node, treadle_value_type* outputs);
  /* Optional: what a node needs once (packed weights …). NULL after `fail` is an error, NULL without it a state of nothing. */
  void* (*create)(void* user, const treadle_host* host, const treadle_node* node);
  void (*destroy)(void* user, void* state);
  /* May return TREADLE_PENDING: the call goes on elsewhere, and ends by `host->call_complete`. Optional beside `map`. */
  int (*run)(void* user, void* state, const treadle_host* host, treadle_call* call);

  /* From version 2 on. A plugin of version 1 has a smaller `size`. */
  uint32_t facts; /* TREADLE_POINTWISE | TREADLE_KEEPS_ZEROS */
  /* Optional, of an operator that is TREADLE_POINTWISE, has one input, and whose nodes have no attributes: y[i] = f(x[i]). It takes part in
   * chains of pointwise operators and in tables of quantised regions; `infer` and `run` may then be NULL for float32 and 16-bit floats.
   * y may be x; called from several threads. */
  void (*map)(void* user, const float* x, float* y, int64_t count);
  /* Optional: adds the nodes that compute the gradients of the inputs, and says which they are (host->gradient_set). Without it a graph
   * with this operator between parameters and loss cannot be trained. */
  int (*gradient)(void* user, const treadle_host* host, treadle_gradient* gradient);
} treadle_operator;

/* One rule by which a backend takes nodes. A backend has several, tried in order: each partitions what the ones before it left. */
typedef struct treadle_backend_property {
  const char* name;            /* "convolutions"; disabled by it */
  int32_t enabled;             /* 0: only where a session names it ("onednn.convolutions") */
  int32_t inference_only;      /* not in a session for training */
  const char* const* op_types; /* NULL-terminated; "Conv" or "domain:Type". NULL: every operator */
  int32_t min_nodes;           /* smaller subgraphs stay with the library */
  const char* device;          /* device on which the nodes must be placed; NULL: "cpu" */
} treadle_backend_property;

typedef struct treadle_backend {
  uint32_t size; /* sizeof(treadle_backend) */
  const char* name;
  void* user;
  const treadle_backend_property* properties;
  size_t num_properties;
  /* Optional: 0 declines a node that passed the property's filter. */
  int (*takes)(void* user, const treadle_host* host, size_t property, const treadle_node* node);
  /* Compiles a subgraph. NULL refuses it: the library then runs its nodes itself (a text given to `fail` is logged as the reason). */
  void* (*compile)(void* user, const treadle_host* host, size_t property, const treadle_subgraph* subgraph);
  int (*run)(void* user, void* compiled, const treadle_host* host, treadle_call* call);
  void (*release)(void* user, void* compiled);
  /* Optional: bytes that a compiled subgraph holds, for memory reports. */
  size_t (*size_bytes)(void* user, const void* compiled);
} treadle_backend;

/* What a kernel of a device is called with. Valid until `launch` returns: what the work needs later has to be copied. */
typedef struct treadle_device_call {
  uint32_t size; /* sizeof(treadle_device_call) */
  const treadle_node* node;
  size_t num_inputs, num_outputs;
  const treadle_tensor_view* inputs;  /* `data` is the device's memory; dtype 0 where an operand is absent */
  const treadle_tensor_view* outputs; /* to be written, despite `const void*`; for a pointwise operator possibly an input's memory */
} treadle_device_call;

/* How a device computes the nodes of one operator, in the meaning of its newest opset. */
typedef struct treadle_device_kernel {
  const char* op_type;
  const char* domain; /* NULL or "": ai.onnx */
  int32_t dtype;      /* a treadle_dtype, of the first input; 0: any */
  /* Optional. 0 declines a node: it then runs on the host, or by the next kernel of this operator in the table. */
  int (*takes)(void* user, const treadle_host* host, const treadle_node* node);
  /* Enqueues the work to a stream, and may return before it is done. 0 after `fail` is an error of the run. */
  int (*launch)(void* user, void* stream, const treadle_host* host, const treadle_device_call* call);
} treadle_device_kernel;

/* A kind of device with memory, streams and kernels of its own. A session names it ("tin", or "tin:NAME" for one of several) as the device
 * of all its nodes or of some. What the device has no kernel for, and nodes whose extents only a run tells, are computed on the host
 * between copies. All callbacks are needed but for `takes` of a kernel and what later versions added. */
typedef struct treadle_device {
  uint32_t size; /* sizeof(treadle_device) */
  const char* name;
  void* user; /* given to every callback; must outlive the process' last session and tensor */
  /* Memory at multiples of 64 bytes, to which pointers may be added; the host never reads or writes it. NULL: there is none. */
  void* (*allocate)(void* user, size_t size_bytes);
  void (*free)(void* user, void* memory, size_t size_bytes);
  /* Work of one stream runs in order; streams run beside each other. One thread at a time uses a stream. */
  void* (*create_stream)(void* user);
  void (*destroy_stream)(void* user, void* stream); /* after `synchronize` */
  /* Enqueues a copy. kind: 0 from the host to the device, 1 to the host, 2 within the device. Host memory stays until the stream ends. */
  int (*copy)(void* user, void* stream, void* to, const void* from, size_t size_bytes, int32_t kind);
  /* The host waits until all work is done. 0 if some of it failed since the last call, after `fail`. */
  int (*synchronize)(void* user, void* stream);
  /* A point in a stream's work. It may be recorded again; a wait means the record before it. */
  void* (*create_event)(void* user);
  void (*destroy_event)(void* user, void* event); /* perhaps before its stream has come to its record */
  int (*record_event)(void* user, void* stream, void* event);
  int (*stream_wait)(void* user, void* stream, void* event); /* later work of the stream waits for the event's last record */
  int (*event_complete)(void* user, void* event);            /* 1 also if it was never recorded */
  void (*wait_event)(void* user, void* event);               /* the host waits */
  const treadle_device_kernel* kernels;
  size_t num_kernels;

  /* From version 5 on. A plugin of an earlier version has a smaller `size`. */
  /* Optional, both or neither. A device of its own for each that a session names ("tin", "tin:1"): all callbacks but `takes` get it in
   * place of `user`. `entries` is the session's configuration, valid until the call returns. NULL after `fail` is an error of the session.
   * Two sessions that name one device have one each; `copy` of kind 2 may lead from one to another. */
  void* (*create_device)(void* user, const treadle_host* host, const char* name, const treadle_config_entry* entries, size_t num_entries);
  void (*destroy_device)(void* user, void* device); /* when its last session and tensor have gone */

  /* From version 6 on. Optional, all or none: kernels and copies reach the host's memory over a bus, under the device's own addresses (as
   * with unified memory). What does not fit the device's memory then stays with the host, and memory limits hold on the device. Without
   * them a run that does not fit fails. */
  /* Addresses without room in the device's memory, at multiples of 64 bytes. NULL: there are none. */
  void* (*allocate_anywhere)(void* user, size_t size_bytes);
  void (*free_anywhere)(void* user, void* memory, size_t size_bytes);
  /* Room in the device's memory, of which `allocate` takes its share, too. 0 if there is none for so many bytes; that is no failure. */
  int (*reserve)(void* user, size_t size_bytes);
  void (*unreserve)(void* user, size_t size_bytes);
  /* What lies there, in memory of allocate_anywhere that no work is using, is not needed until it is written again. */
  void (*discard)(void* user, void* data, size_t size_bytes);
  /* Enqueues a prefetch of what lies there, in memory of allocate_anywhere: to the device's memory, for which room has been reserved, or to
   * the host's; other work may read there meanwhile. Contents that a kernel writes for the first time are not announced. kind: 0 to the
   * device, 1 to the host, 2 to the host if they have not changed since they came from there. 0 after `fail` is an error. */
  int (*move)(void* user, void* stream, void* data, size_t size_bytes, int32_t kind);
} treadle_device;

/* One rank among several that train together (treadle/communicator.h says what each call means). One thread at a time calls it. */
typedef struct treadle_communicator {
  uint32_t size; /* sizeof(treadle_communicator) */
  void* user;    /* given to every callback */
  int32_t rank, num_ranks;
  /* Sums over all ranks, in place; `dtype` is float32, float64 or bfloat16. 0 after `fail`, with a text that names the rank at fault. */
  int (*all_reduce)(void* user, const treadle_host* host, void* data, size_t count, int32_t dtype);
  int (*broadcast)(void* user, const treadle_host* host, void* data, size_t size_bytes, int32_t root);
  /* Optional: tells the other ranks that this one has failed. */
  void (*tell_failure)(void* user, const char* reason);
  /* Optional: called once, when nobody uses it any more. */
  void (*release)(void* user);
} treadle_communicator;

/* A way to find the ranks that a launcher has started. */
typedef struct treadle_communicator_type {
  uint32_t size; /* sizeof(treadle_communicator_type) */
  const char* name;
  void* user;
  /* Fills `out`, whose `size` is set. `deadline_s`: how long a call waits for other ranks. 0 after `fail` is an error. */
  int (*connect)(void* user, const treadle_host* host, double deadline_s, treadle_communicator* out);
} treadle_communicator_type;

struct treadle_host {
  uint32_t size, version; /* sizeof(treadle_host), TREADLE_PLUGIN_VERSION */

  /* The text of the failure that the callback is about to return. */
  void (*fail)(const char* message);

  /* Nodes. Names are NUL-terminated and live as long as the node. */
  const char* (*node_op_type)(const treadle_node* node);
  const char* (*node_domain)(const treadle_node* node); /* "" is ai.onnx */
  const char* (*node_name)(const treadle_node* node);
  size_t (*node_num_inputs)(const treadle_node* node);
  size_t (*node_num_outputs)(const treadle_node* node);
  const char* (*node_input)(const treadle_node* node, size_t index); /* the value's name; "" if it is absent */
  const char* (*node_output)(const treadle_node* node, size_t index);
  void (*node_input_type)(const treadle_node* node, size_t index, treadle_value_type* out);
  void (*node_output_type)(const treadle_node* node, size_t index, treadle_value_type* out);
  /* Elements of a constant operand; 0 if it is not a constant tensor of numbers. */
  int (*node_input_constant)(const treadle_node* node, size_t index, treadle_tensor_view* out);
  size_t (*node_num_attributes)(const treadle_node* node);
  const char* (*node_attribute_name)(const treadle_node* node, size_t index); /* NULL beyond the last */
  /* Attributes: 0 if the node has none of that name and type. Defaults of the specification are not filled in. */
  int (*node_attribute_int)(const treadle_node* node, const char* name, int64_t* out);
  int (*node_attribute_float)(const treadle_node* node, const char* name, float* out);
  int (*node_attribute_string)(const treadle_node* node, const char* name, const char** out, size_t* length);
  int (*node_attribute_ints)(const treadle_node* node, const char* name, const int64_t** out, size_t* count);
  int (*node_attribute_floats)(const treadle_node* node, const char* name, const float** out, size_t* count);

  /* Subgraphs: nodes in topological order; operands that come from outside, constants apart, and values that are read outside. */
  size_t (*subgraph_num_nodes)(const treadle_subgraph* subgraph);
  const treadle_node* (*subgraph_node)(const treadle_subgraph* subgraph, size_t index);
  size_t (*subgraph_num_inputs)(const treadle_subgraph* subgraph);
  size_t (*subgraph_num_outputs)(const treadle_subgraph* subgraph);
  const char* (*subgraph_input)(const treadle_subgraph* subgraph, size_t index);
  const char* (*subgraph_output)(const treadle_subgraph* subgraph, size_t index);

  /* Executions: operands in the order of the node's or the subgraph's inputs and outputs. Inputs are the run's own memory: they are valid
   * until the call ends, and must not be written. Where one of these functions fails, the node fails with that error, whatever `run`
   * returns. */
  size_t (*call_num_inputs)(const treadle_call* call);
  size_t (*call_num_outputs)(const treadle_call* call);
  int (*call_input)(const treadle_call* call, size_t index, treadle_tensor_view* out); /* 0 if it is absent or no tensor */
  const char* (*call_string)(const treadle_call* call, size_t index, size_t element, size_t* length);
  /* Room for an output; NULL if there is none (no such output, no memory; then return 0). Strings: use call_set_string afterwards. */
  void* (*call_output)(treadle_call* call, size_t index, int32_t dtype, const int64_t* dims, size_t rank);
  int (*call_set_string)(treadle_call* call, size_t index, size_t element, const char* text, size_t length);
  /* fn(context, begin, end) over chunks of [0, count), on the session's threads. */
  void (*parallel_for)(treadle_call* call, int64_t count, int64_t grain, void (*fn)(void* context, int64_t begin, int64_t end),
                       void* context);

  /* For the entry of a plugin: 0 on failure. What is registered is copied; callbacks and `user` must stay valid. */
  int (*register_operator)(const treadle_operator* op);
  int (*register_backend)(const treadle_backend* backend);

  /* Ends a call whose `run` returned, or will return, TREADLE_PENDING: exactly once, from any thread, with the outputs made (`ok` 1) or a
   * text (`ok` 0). `call` is not valid afterwards. */
  void (*call_complete)(treadle_call* call, int ok, const char* message);
  /* 1 if the run was cancelled, or another node failed: a pending call should complete soon. */
  int (*call_cancelled)(const treadle_call* call);

  /* From version 2 on. Gradients: values are TREADLE_NO_VALUE where there is none, and after a failure. */
  const treadle_node* (*gradient_node)(const treadle_gradient* gradient); /* the node that is differentiated */
  treadle_graph_value (*gradient_input)(const treadle_gradient* gradient, size_t index);
  treadle_graph_value (*gradient_output)(const treadle_gradient* gradient, size_t index);
  /* The gradient of an output; TREADLE_NO_VALUE if nothing flows back into it. */
  treadle_graph_value (*gradient_of_output)(const treadle_gradient* gradient, size_t index);
  /* A scalar of the dtype of `like`. */
  treadle_graph_value (*gradient_number)(treadle_gradient* gradient, double number, treadle_graph_value like);
  /* A node with one output, of the newest opset, without attributes. `domain` "" is ai.onnx. Returns the output. */
  treadle_graph_value (*gradient_add)(treadle_gradient* gradient, const char* domain, const char* op_type,
                                      const treadle_graph_value* inputs, size_t num_inputs);
  /* The gradient of an input: of its shape and dtype. 0 if there is no such input or value. */
  int (*gradient_set)(treadle_gradient* gradient, size_t input, treadle_graph_value value);

  /* From version 3 on. For the entry of a plugin, as register_operator. */
  int (*register_device)(const treadle_device* device);

  /* From version 4 on. For the entry of a plugin, as register_operator. */
  int (*register_communicator)(const treadle_communicator_type* type);
};

/* The same from a program that links to the library. A second registration under the same name serves sessions made afterwards. */
TREADLE_C_API treadle_status* treadle_register_operator(const treadle_operator* op);
TREADLE_C_API treadle_status* treadle_register_backend(const treadle_backend* backend);
TREADLE_C_API treadle_status* treadle_register_device(const treadle_device* device);
TREADLE_C_API treadle_status* treadle_register_communicator(const treadle_communicator_type* type);
/* As treadle_trainer_create, for one rank among several. `communicator` is copied; its `release` is called when the trainer is released. */
TREADLE_C_API treadle_status* treadle_trainer_create_rank(const treadle_model* model, const treadle_config_entry* options,
                                                          size_t num_options, const treadle_communicator* communicator,
                                                          treadle_trainer** out);
/* Loads a shared object and calls its `int treadle_plugin_main(const treadle_host*)`, which registers what it has and returns 1. One that
 * was built for ONNX Runtime and has `RegisterCustomOps` in its place gives its custom operators (docs/onnxruntime.md). */
TREADLE_C_API treadle_status* treadle_load_plugin(const char* path);
/* Registered backends, in the order of registration. Names stay valid; NULL beyond the last. */
TREADLE_C_API size_t treadle_num_backends(void);
TREADLE_C_API const char* treadle_backend_name(size_t index);

#ifdef __cplusplus
}
#endif

#endif /* TREADLE_PLUGIN_H_ */
