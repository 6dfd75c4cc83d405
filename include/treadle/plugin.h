/* A C interface for operators, subgraph backends and devices outside the library. A plugin needs only this header: it calls the library
 * through the table `treadle_host`, so it links to nothing. Structs that a plugin fills begin with their size; fields are only added at the
 * end. A callback reports failure by calling `host->fail` and returning 0 (or NULL, if it returns a pointer). It must not throw. Several
 * threads may call callbacks at once. docs/add-a-backend.md and docs/add-a-device.md are tutorials.
 */
#ifndef TREADLE_PLUGIN_H_
#define TREADLE_PLUGIN_H_

#include <stddef.h>
#include <stdint.h>

#include "treadle/treadle.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TREADLE_PLUGIN_VERSION 7U
#define TREADLE_PLUGIN_MAX_RANK 16
/* An operator's `run` returns this instead of 1 if its work is not done yet. The parallel executor continues with other nodes. */
#define TREADLE_PENDING 2

typedef struct treadle_host treadle_host;
typedef struct treadle_node treadle_node;         /* a node of a graph; valid during the callback that got it, or as long as its subgraph */
typedef struct treadle_subgraph treadle_subgraph; /* nodes for a backend to compile; valid until `compile` returns */
typedef struct treadle_gradient treadle_gradient; /* a node to differentiate; valid until `gradient` returns */
typedef struct treadle_call treadle_call;         /* an execution; valid until `run` returns or, if pending, until `call_complete` */

/* The type of a value as known before a run. A rank or extent of -1 is unknown. `dtype` is a treadle_dtype. */
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

/* A value of the graph that gradients are added to. */
typedef uint32_t treadle_graph_value;
#define TREADLE_NO_VALUE UINT32_MAX

/* Facts about an operator, for treadle_operator.facts. Without them the library assumes nothing. */
/* Each element of the output depends only on the elements at the same position of the broadcast operands. The operator may then get
 * operands with permuted axes, and float32 in place of 16-bit floats. It must have one output, and no attribute that refers to axes. */
#define TREADLE_POINTWISE 1U
/* The output is 0 wherever input 0 is 0 (with two operands: where the other one is finite and not 0), whatever the attributes are. */
#define TREADLE_KEEPS_ZEROS 2U

/* A custom operator. Its kernel gets operands with their actual shapes, and states the shapes of outputs when it requests them. */
typedef struct treadle_operator {
  uint32_t size; /* sizeof(treadle_operator) */
  const char* domain;
  const char* op_type;
  int32_t min_inputs, max_inputs; /* max_inputs -1: any number */
  int32_t num_outputs;
  int32_t deterministic; /* 0: never folded or merged with an equal node */
  void* user;            /* passed to every callback; must outlive the last session of the process */
  /* Optional. Fills one entry per output (dtype 0 and rank -1 if unknown). Without it, output types are known only in a run. */
  int (*infer)(void* user, const treadle_host* host, const treadle_node* node, treadle_value_type* outputs);
  /* Optional: prepares a node's state (packed weights …). NULL after `fail` is an error; otherwise NULL means that there is no state. */
  void* (*create)(void* user, const treadle_host* host, const treadle_node* node);
  void (*destroy)(void* user, void* state);
  /* May return TREADLE_PENDING: the call then continues elsewhere, until `host->call_complete`. Optional if there is a `map`. */
  int (*run)(void* user, void* state, const treadle_host* host, treadle_call* call);

  /* From version 2 on. A plugin of version 1 has a smaller `size`. */
  uint32_t facts; /* TREADLE_POINTWISE | TREADLE_KEEPS_ZEROS */
  /* Optional, for TREADLE_POINTWISE operators with one input and without attributes: y[i] = f(x[i]). The library uses it in fused chains of
   * pointwise operators, and for tables in quantized regions. `infer` and `run` may then be NULL for float32 and 16-bit floats. y may equal
   * x. Several threads call it at once. */
  void (*map)(void* user, const float* x, float* y, int64_t count);
  /* Optional: adds nodes that compute the gradients of the inputs, and declares these (host->gradient_set). Without it, a graph with this
   * operator between parameters and loss cannot be trained. */
  int (*gradient)(void* user, const treadle_host* host, treadle_gradient* gradient);
} treadle_operator;

/* A rule by which a backend selects nodes. The rules of a backend are tried in order: each partitions the nodes that earlier ones left. */
typedef struct treadle_backend_property {
  const char* name;            /* such as "convolutions"; sessions disable the rule by this name */
  int32_t enabled;             /* 0: only if a session names it ("onednn.convolutions") */
  int32_t inference_only;      /* not in a session for training */
  const char* const* op_types; /* NULL-terminated; "Conv" or "domain:Type". NULL: every operator */
  int32_t min_nodes;           /* the library keeps smaller subgraphs */
  const char* device;          /* device on which the nodes must be placed; NULL: "cpu" */
} treadle_backend_property;

typedef struct treadle_backend {
  uint32_t size; /* sizeof(treadle_backend) */
  const char* name;
  void* user;
  const treadle_backend_property* properties;
  size_t num_properties;
  /* Optional: returns 0 to decline a node that has passed the property's filter. */
  int (*takes)(void* user, const treadle_host* host, size_t property, const treadle_node* node);
  /* Compiles a subgraph. NULL rejects it: the library then runs the nodes itself (and logs the text given to `fail` as the reason). */
  void* (*compile)(void* user, const treadle_host* host, size_t property, const treadle_subgraph* subgraph);
  int (*run)(void* user, void* compiled, const treadle_host* host, treadle_call* call);
  void (*release)(void* user, void* compiled);
  /* Optional: bytes that a compiled subgraph holds, for memory reports. */
  size_t (*size_bytes)(void* user, const void* compiled);
} treadle_backend;

/* Arguments of a device kernel. Valid until `launch` returns: anything that the work needs later must be copied. */
typedef struct treadle_device_call {
  uint32_t size; /* sizeof(treadle_device_call) */
  const treadle_node* node;
  size_t num_inputs, num_outputs;
  const treadle_tensor_view* inputs;  /* `data` is device memory; dtype 0: the operand is absent */
  const treadle_tensor_view* outputs; /* the kernel writes them, despite `const void*`; pointwise operators may get an input's memory */
} treadle_device_call;

/* A device's kernel for one operator, with the semantics of its newest opset. */
typedef struct treadle_device_kernel {
  const char* op_type;
  const char* domain; /* NULL or "": ai.onnx */
  int32_t dtype;      /* a treadle_dtype, of the first input; 0: any */
  /* Optional: returns 0 to decline a node. Then the next kernel of this operator in the table is tried, or the node runs on the host. */
  int (*takes)(void* user, const treadle_host* host, const treadle_node* node);
  /* Enqueues the kernel's work to a stream, and may return before it is done. 0 after `fail` ends the run with an error. */
  int (*launch)(void* user, void* stream, const treadle_host* host, const treadle_device_call* call);
} treadle_device_kernel;

/* A type of device with its own memory, streams and kernels. A session selects it ("tin", or "tin:NAME" for one of several) for all or some
 * of its nodes. Nodes without a kernel, and nodes whose extents only a run knows, run on the host between copies. All callbacks are
 * required, except a kernel's `takes` and those that later versions added. */
typedef struct treadle_device {
  uint32_t size; /* sizeof(treadle_device) */
  const char* name;
  void* user; /* passed to every callback; must outlive the last session and tensor of the process */
  /* Returns memory aligned to 64 bytes. The host does arithmetic on the pointer, but never accesses the memory. NULL: out of memory. */
  void* (*allocate)(void* user, size_t size_bytes);
  void (*free)(void* user, void* memory, size_t size_bytes);
  /* Work of one stream runs in order; streams run concurrently. One thread at a time uses a stream. */
  void* (*create_stream)(void* user);
  void (*destroy_stream)(void* user, void* stream); /* after `synchronize` */
  /* Enqueues a copy. kind: 0 host to device, 1 device to host, 2 within the device. Host memory stays valid until the copy has ended. */
  int (*copy)(void* user, void* stream, void* to, const void* from, size_t size_bytes, int32_t kind);
  /* Blocks the host until the stream's work is done. If any work failed since the last call: calls `fail` and returns 0. */
  int (*synchronize)(void* user, void* stream);
  /* An event is a point in a stream's work. It may be recorded repeatedly; a wait refers to the last record before the wait. */
  void* (*create_event)(void* user);
  void (*destroy_event)(void* user, void* event); /* may be called before the stream has reached the event */
  int (*record_event)(void* user, void* stream, void* event);
  int (*stream_wait)(void* user, void* stream, void* event); /* later work of the stream waits for the event's last record */
  int (*event_complete)(void* user, void* event);            /* also 1 if the event was never recorded */
  void (*wait_event)(void* user, void* event);               /* blocks the host until the event is complete */
  const treadle_device_kernel* kernels;
  size_t num_kernels;

  /* From version 5 on. A plugin of an earlier version has a smaller `size`. */
  /* Optional, both or neither: makes an object for each device that a session names ("tin", "tin:1"), which all callbacks except `takes`
   * get instead of `user`. `entries` is the session's configuration, valid until the call returns. NULL after `fail` makes the session
   * fail. Two sessions that name the same device get an object each; `copy` of kind 2 may copy between them. */
  void* (*create_device)(void* user, const treadle_host* host, const char* name, const treadle_config_entry* entries, size_t num_entries);
  void (*destroy_device)(void* user, void* device); /* when its last session and tensor are gone */

  /* From version 6 on. Optional, all or none: kernels and copies can access host memory over a bus under device addresses (as with unified
   * memory). Values that do not fit into the device's memory then stay on the host, and memory limits apply to the device. Without these
   * functions, a run fails if its values do not fit. */
  /* Allocates addresses, aligned to 64 bytes, without device memory. NULL: there are none. */
  void* (*allocate_anywhere)(void* user, size_t size_bytes);
  void (*free_anywhere)(void* user, void* memory, size_t size_bytes);
  /* Reserves device memory, from the same total as `allocate`. Returns 0 if not enough is free, which is no failure. */
  int (*reserve)(void* user, size_t size_bytes);
  void (*unreserve)(void* user, size_t size_bytes);
  /* Declares that the contents of memory from allocate_anywhere are not needed any more. No work is using them. */
  void (*discard)(void* user, void* data, size_t size_bytes);
  /* Enqueues a move of contents in memory from allocate_anywhere: to device memory, which has been reserved, or to host memory. Other work
   * may read them during the move. Memory that a kernel will write for the first time is not moved. kind: 0: to the device; 1: to the host;
   * 2: to the host, if they are unchanged since they came from there. 0 after `fail` is an error. */
  int (*move)(void* user, void* stream, void* data, size_t size_bytes, int32_t kind);

  /* From version 7 on. Optional: the time at which the work before the event's last record was done, in nanoseconds of CLOCK_MONOTONIC.
   * Called only for profiles, when that work is done. Without it, profiles have the times at which the host enqueued work. 0: unknown. */
  int64_t (*event_time)(void* user, void* event);
} treadle_device;

/* Connects one of several ranks that train together; treadle/communicator.h describes the calls. One thread at a time makes them. */
typedef struct treadle_communicator {
  uint32_t size; /* sizeof(treadle_communicator) */
  void* user;    /* given to every callback */
  int32_t rank, num_ranks;
  /* Sums over all ranks, in place; `dtype` is float32, float64 or bfloat16. On failure, the text for `fail` should name the rank at fault.
   */
  int (*all_reduce)(void* user, const treadle_host* host, void* data, size_t count, int32_t dtype);
  int (*broadcast)(void* user, const treadle_host* host, void* data, size_t size_bytes, int32_t root);
  /* Optional: tells the other ranks that this one has failed. */
  void (*tell_failure)(void* user, const char* reason);
  /* Optional: called once, when the communicator is no longer used. */
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

  /* Sets the text of the failure that the callback is about to return. */
  void (*fail)(const char* message);

  /* Nodes. Names are NUL-terminated and valid as long as the node. */
  const char* (*node_op_type)(const treadle_node* node);
  const char* (*node_domain)(const treadle_node* node); /* "" is ai.onnx */
  const char* (*node_name)(const treadle_node* node);
  size_t (*node_num_inputs)(const treadle_node* node);
  size_t (*node_num_outputs)(const treadle_node* node);
  const char* (*node_input)(const treadle_node* node, size_t index); /* the value's name; "" if it is absent */
  const char* (*node_output)(const treadle_node* node, size_t index);
  void (*node_input_type)(const treadle_node* node, size_t index, treadle_value_type* out);
  void (*node_output_type)(const treadle_node* node, size_t index, treadle_value_type* out);
  /* Returns the elements of a constant operand; 0 if it is not a constant tensor of numbers. */
  int (*node_input_constant)(const treadle_node* node, size_t index, treadle_tensor_view* out);
  size_t (*node_num_attributes)(const treadle_node* node);
  const char* (*node_attribute_name)(const treadle_node* node, size_t index); /* NULL beyond the last */
  /* Attributes: 0 if the node has none of this name and type. ONNX's default values are not filled in. For a node that a device or backend
   * is asked about, node_attribute_string also returns lists of strings, with one string per line. */
  int (*node_attribute_int)(const treadle_node* node, const char* name, int64_t* out);
  int (*node_attribute_float)(const treadle_node* node, const char* name, float* out);
  int (*node_attribute_string)(const treadle_node* node, const char* name, const char** out, size_t* length);
  int (*node_attribute_ints)(const treadle_node* node, const char* name, const int64_t** out, size_t* count);
  int (*node_attribute_floats)(const treadle_node* node, const char* name, const float** out, size_t* count);

  /* Subgraphs: nodes in topological order. Inputs are operands from outside, except constants; outputs are values that are read outside. */
  size_t (*subgraph_num_nodes)(const treadle_subgraph* subgraph);
  const treadle_node* (*subgraph_node)(const treadle_subgraph* subgraph, size_t index);
  size_t (*subgraph_num_inputs)(const treadle_subgraph* subgraph);
  size_t (*subgraph_num_outputs)(const treadle_subgraph* subgraph);
  const char* (*subgraph_input)(const treadle_subgraph* subgraph, size_t index);
  const char* (*subgraph_output)(const treadle_subgraph* subgraph, size_t index);

  /* Executions: operands in the order of the node's or the subgraph's inputs and outputs. Inputs are in the run's memory: they are valid
   * until the call ends, and must not be written. If one of these functions fails, the node fails with its error, whatever `run` returns.
   */
  size_t (*call_num_inputs)(const treadle_call* call);
  size_t (*call_num_outputs)(const treadle_call* call);
  int (*call_input)(const treadle_call* call, size_t index, treadle_tensor_view* out); /* 0 if it is absent or not a tensor */
  const char* (*call_string)(const treadle_call* call, size_t index, size_t element, size_t* length);
  /* Allocates an output. NULL: there is no such output, or no memory; then return 0. For strings, use call_set_string afterwards. */
  void* (*call_output)(treadle_call* call, size_t index, int32_t dtype, const int64_t* dims, size_t rank);
  int (*call_set_string)(treadle_call* call, size_t index, size_t element, const char* text, size_t length);
  /* Calls fn(context, begin, end) for chunks of [0, count), on the session's threads. */
  void (*parallel_for)(treadle_call* call, int64_t count, int64_t grain, void (*fn)(void* context, int64_t begin, int64_t end),
                       void* context);

  /* A plugin's main function calls these; they return 0 on failure. The struct is copied; callbacks and `user` must stay valid. */
  int (*register_operator)(const treadle_operator* op);
  int (*register_backend)(const treadle_backend* backend);

  /* Ends a call whose `run` returns TREADLE_PENDING, even before `run` has returned. Called exactly once, from any thread, when the outputs
   * are written (`ok` 1), or with an error text (`ok` 0). `call` is invalid afterwards. */
  void (*call_complete)(treadle_call* call, int ok, const char* message);
  /* 1 if the run was cancelled, or another node failed: a pending call should complete soon. */
  int (*call_cancelled)(const treadle_call* call);

  /* From version 2 on. Gradients: these functions return TREADLE_NO_VALUE if there is no such value, and after a failure. */
  const treadle_node* (*gradient_node)(const treadle_gradient* gradient); /* the node that is differentiated */
  treadle_graph_value (*gradient_input)(const treadle_gradient* gradient, size_t index);
  treadle_graph_value (*gradient_output)(const treadle_gradient* gradient, size_t index);
  /* The gradient of an output; TREADLE_NO_VALUE if it has none. */
  treadle_graph_value (*gradient_of_output)(const treadle_gradient* gradient, size_t index);
  /* Adds a scalar constant of the dtype of `like`. */
  treadle_graph_value (*gradient_number)(treadle_gradient* gradient, double number, treadle_graph_value like);
  /* Adds a node with one output, of the newest opset, without attributes. `domain` "" is ai.onnx. Returns the output. */
  treadle_graph_value (*gradient_add)(treadle_gradient* gradient, const char* domain, const char* op_type,
                                      const treadle_graph_value* inputs, size_t num_inputs);
  /* Sets the gradient of an input, which must have its shape and dtype. 0 if there is no such input or value. */
  int (*gradient_set)(treadle_gradient* gradient, size_t input, treadle_graph_value value);

  /* From version 3 on. A plugin's main function calls it, like register_operator. */
  int (*register_device)(const treadle_device* device);

  /* From version 4 on. A plugin's main function calls it, like register_operator. */
  int (*register_communicator)(const treadle_communicator_type* type);
};

/* Register parts of programs that link to the library. A second registration under the same name applies to sessions made afterwards. */
TREADLE_C_API treadle_status* treadle_register_operator(const treadle_operator* op);
TREADLE_C_API treadle_status* treadle_register_backend(const treadle_backend* backend);
TREADLE_C_API treadle_status* treadle_register_device(const treadle_device* device);
TREADLE_C_API treadle_status* treadle_register_communicator(const treadle_communicator_type* type);
/* Makes a trainer that is one of several ranks. `communicator` is copied; its `release` is called when the trainer is released. */
TREADLE_C_API treadle_status* treadle_trainer_create_rank(const treadle_model* model, const treadle_config_entry* options,
                                                          size_t num_options, const treadle_communicator* communicator,
                                                          treadle_trainer** out);
/* Loads a shared object and calls its `int treadle_plugin_main(const treadle_host*)`, which registers its parts and returns 1. A shared
 * object built for ONNX Runtime, which has `RegisterCustomOps` instead, provides its custom operators (docs/onnxruntime.md). */
TREADLE_C_API treadle_status* treadle_load_plugin(const char* path);
/* Registered backends, in the order of registration. Names stay valid; NULL beyond the last. */
TREADLE_C_API size_t treadle_num_backends(void);
TREADLE_C_API const char* treadle_backend_name(size_t index);

#ifdef __cplusplus
}
#endif

#endif /* TREADLE_PLUGIN_H_ */
