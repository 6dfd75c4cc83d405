/* Treadle's C ABI: opaque handles, and status codes with messages; no exceptions. It is binary-stable: functions are only added, and
 * structs contain their size. A function that returns `treadle_status*` returns NULL on success; the caller releases any other status.
 * Several threads may use a session at once; only one thread at a time may use any other handle.
 * A returned string is valid as long as the handle that it was requested from.
 *
 * Arguments. A pointer may be NULL where the comment says so; so may a list whose count is 0, and the context of a callback. NULL
 * elsewhere, a handle of another kind, a number outside its enum, or an impossibly large count is TREADLE_INVALID_ARGUMENT, with a message
 * that names the function and the argument, and without any effect. Functions without a status then return 0 or NULL, and release functions
 * do nothing. The library cannot check the following, so the caller must ensure it: handles were returned by the library and are not
 * released; lists have as many elements as their count says; strings end with a 0; memory has the stated size, and the alignment of its
 * elements. */
#ifndef TREADLE_TREADLE_H_
#define TREADLE_TREADLE_H_

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define TREADLE_C_API __declspec(dllexport)
#else
#define TREADLE_C_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* This number grows with every addition to this header. */
#define TREADLE_ABI_VERSION 19

typedef struct treadle_status treadle_status;
typedef struct treadle_model treadle_model;
typedef struct treadle_session treadle_session;
typedef struct treadle_run_options treadle_run_options;
typedef struct treadle_value treadle_value;
typedef struct treadle_partial_run treadle_partial_run;
typedef struct treadle_job treadle_job;
typedef struct treadle_allocator treadle_allocator;
typedef struct treadle_engine treadle_engine;
typedef struct treadle_variable treadle_variable;
typedef struct treadle_scratch treadle_scratch;
typedef struct treadle_random_stream treadle_random_stream;
typedef struct treadle_trainer treadle_trainer;
typedef struct treadle_checkpoint_folder treadle_checkpoint_folder;
typedef struct treadle_dataset treadle_dataset;
typedef struct treadle_data_loader treadle_data_loader;
typedef struct treadle_joint_module treadle_joint_module;
typedef struct treadle_joint_run treadle_joint_run;
typedef struct treadle_executor treadle_executor;
typedef struct treadle_shared_buffer treadle_shared_buffer;
typedef struct treadle_precision_choice treadle_precision_choice;
typedef struct treadle_metrics_reporter treadle_metrics_reporter;
typedef struct treadle_io_binding treadle_io_binding;
typedef struct treadle_stateful_run treadle_stateful_run;
typedef struct treadle_async_run treadle_async_run;

typedef enum treadle_code {
  TREADLE_OK = 0,
  TREADLE_INVALID_ARGUMENT = 1,
  TREADLE_INVALID_MODEL = 2,
  TREADLE_NOT_IMPLEMENTED = 3,
  TREADLE_NOT_FOUND = 4,
  TREADLE_RESOURCE_EXHAUSTED = 5,
  TREADLE_CANCELLED = 6,
  TREADLE_TIMED_OUT = 7,
  TREADLE_IO_ERROR = 8,
  TREADLE_INTERNAL = 9
} treadle_code;

/* Element types, with ONNX's numbers (TensorProto.DataType). The numbers 17 to 28, types of at most 8 bits, are accepted as well. */
typedef enum treadle_dtype {
  TREADLE_UNDEFINED = 0,
  TREADLE_FLOAT32 = 1,
  TREADLE_UINT8 = 2,
  TREADLE_INT8 = 3,
  TREADLE_UINT16 = 4,
  TREADLE_INT16 = 5,
  TREADLE_INT32 = 6,
  TREADLE_INT64 = 7,
  TREADLE_STRING = 8,
  TREADLE_BOOL = 9,
  TREADLE_FLOAT16 = 10,
  TREADLE_FLOAT64 = 11,
  TREADLE_UINT32 = 12,
  TREADLE_UINT64 = 13,
  TREADLE_COMPLEX64 = 14,
  TREADLE_COMPLEX128 = 15,
  TREADLE_BFLOAT16 = 16
} treadle_dtype;

typedef enum treadle_value_kind {
  TREADLE_NONE = 0,
  TREADLE_TENSOR = 1,
  TREADLE_SPARSE_TENSOR = 2,
  TREADLE_SEQUENCE = 3,
  TREADLE_OPTIONAL = 4,
  TREADLE_MAP = 5
} treadle_value_kind;

TREADLE_C_API const char* treadle_version(void); /* "0.1.0" */
TREADLE_C_API uint32_t treadle_abi_version(void);

/* Statuses. A NULL status is TREADLE_OK with an empty message. */
TREADLE_C_API treadle_code treadle_status_code(const treadle_status* status);
TREADLE_C_API const char* treadle_status_message(const treadle_status* status);
TREADLE_C_API void treadle_status_release(treadle_status* status);
/* Makes a status for callbacks that fail. `message` may be NULL. A code that is not an error becomes TREADLE_INTERNAL. */
TREADLE_C_API treadle_status* treadle_status_create(treadle_code code, const char* message);
/* Since version 16 of the ABI: 1 if a TREADLE_RESOURCE_EXHAUSTED means that memory, or a memory limit, is exhausted; 0 if another limit
 * is, such as nodes of a model or states of a pattern. 0 for NULL. */
TREADLE_C_API int treadle_status_is_out_of_memory(const treadle_status* status);
TREADLE_C_API treadle_status* treadle_status_create_out_of_memory(const char* message);

/* Models. `model_dir` is the folder of external data; NULL: external data is an error. */
TREADLE_C_API treadle_status* treadle_model_load(const char* path, treadle_model** out);
TREADLE_C_API treadle_status* treadle_model_from_bytes(const void* bytes, size_t size_bytes, const char* model_dir, treadle_model** out);
TREADLE_C_API treadle_status* treadle_model_save(const treadle_model* model, const char* path, int optimized, int opset);
TREADLE_C_API void treadle_model_release(treadle_model* model);

/* What a model says about itself, since version 19 of the ABI. `field`: "producer_name", "producer_version", "graph_name",
 * "graph_description", "domain" or "description"; NULL for another name. */
TREADLE_C_API const char* treadle_model_metadata(const treadle_model* model, const char* field);
TREADLE_C_API int64_t treadle_model_version(const treadle_model* model);
TREADLE_C_API int64_t treadle_model_ir_version(const treadle_model* model);
/* The operator sets, ordered by domain. The domain of ONNX's own operators is "". NULL and 0 beyond the last. */
TREADLE_C_API size_t treadle_model_num_opsets(const treadle_model* model);
TREADLE_C_API const char* treadle_model_opset_domain(const treadle_model* model, size_t index);
TREADLE_C_API int64_t treadle_model_opset_version(const treadle_model* model, size_t index);
/* The entries that the model's author has added, ordered by key. NULL beyond the last. */
TREADLE_C_API size_t treadle_model_num_properties(const treadle_model* model);
TREADLE_C_API const char* treadle_model_property_key(const treadle_model* model, size_t index);
TREADLE_C_API const char* treadle_model_property_value(const treadle_model* model, size_t index);

/* A session config entry; docs/options.md lists the keys that have an effect. */
typedef struct treadle_config_entry {
  const char* key;
  const char* value;
} treadle_config_entry;

/* Sessions. Zero-initialize the options and set struct_size; zero is the default of all members. */
typedef struct treadle_session_options {
  size_t struct_size;
  int32_t intra_op_num_threads; /* 0: the process's shared pool */
  int32_t disable_optimization; /* non-zero: the graph runs as written */
  int32_t loose_symbols;        /* no effect since version 12 of the ABI: a symbol may always have different values in
                                   different inputs, unless "treadle.strict_symbols" makes that an error */
  int32_t enable_profiling;
  const char* profile_file_prefix;
  const char* backends;  /* subgraph backends, as in treadle/plugin.h: "onednn,other.property"; NULL: none */
  treadle_job* job;      /* job that runs belong to; NULL: the job described by the environment, if any */
  const char* allocator; /* for all memory: "plain", "arena", "guard", "nan", "pattern", "recording", joined by "+"; NULL: the system */
  uint64_t memory_limit_bytes;                /* limit for weights, activations, and outputs until they are handed over; 0: none */
  const char* spill_folder;                   /* folder for values that do not fit; NULL: the system's temporary folder */
  const treadle_config_entry* config_entries; /* "treadle.device", "treadle.group2ctx" and others; applied after the members above */
  size_t num_config_entries;
  treadle_allocator* custom_allocator; /* in place of `allocator`; NULL: none */
  int32_t own_weights;                 /* non-zero: weights are not shared with other sessions of the process */
} treadle_session_options;

/* Jobs let sessions share a device (docs/sharing.md). A session keeps its job alive. Changes take effect within one node. */
typedef enum treadle_job_class { TREADLE_GUARANTEED = 0, TREADLE_OPPORTUNISTIC = 1 } treadle_job_class;

typedef struct treadle_job_status {
  size_t struct_size; /* set by the caller */
  uint64_t id;
  int64_t pid;
  char name[48];
  int32_t job_class;      /* treadle_job_class */
  int32_t suspended;      /* 0 or 1 */
  double share_percent;   /* as set */
  double granted_percent; /* limited by the coordinator's policy; the smaller of both applies */
  uint64_t running, runs; /* running and ended runs */
  uint64_t run_ns, idle_ns, gave_way_ns, average_step_ns;
  uint64_t memory_limit_bytes, device_bytes, host_bytes, moved_bytes;
  uint64_t host_limit_bytes, disk_bytes;
} treadle_job_status;

/* `name` NULL: the program's name. `job_class`: a treadle_job_class. `memory_limit_bytes` 0: no limit. */
TREADLE_C_API treadle_status* treadle_job_create(const char* name, int32_t job_class, double share_percent, uint64_t memory_limit_bytes,
                                                 treadle_job** out);
TREADLE_C_API void treadle_job_release(treadle_job* job);
TREADLE_C_API treadle_status* treadle_job_get_status(const treadle_job* job, treadle_job_status* out);
TREADLE_C_API treadle_status* treadle_job_set_share(treadle_job* job, double share_percent);
TREADLE_C_API treadle_status* treadle_job_set_suspended(treadle_job* job, int suspended);
TREADLE_C_API treadle_status* treadle_job_set_memory_limit(treadle_job* job, uint64_t bytes);
/* Sets the limit of host memory, including values that do not fit on a device; 0: no limit. */
TREADLE_C_API treadle_status* treadle_job_set_host_limit(treadle_job* job, uint64_t bytes);
/* Lists all jobs of this user on this machine: fills up to `capacity` entries, whose struct_size the caller has set. `num_jobs` receives
 * the number of jobs. */
TREADLE_C_API treadle_status* treadle_jobs_list(treadle_job_status* out, size_t capacity, size_t* num_jobs);
/* Changes a job of any process of this user. */
TREADLE_C_API treadle_status* treadle_jobs_set_share(uint64_t id, double share_percent);

/* `options` NULL: the defaults. */
TREADLE_C_API treadle_status* treadle_session_create(const treadle_model* model, const treadle_session_options* options,
                                                     treadle_session** out);
TREADLE_C_API void treadle_session_release(treadle_session* session);
TREADLE_C_API size_t treadle_session_num_inputs(const treadle_session* session);
TREADLE_C_API size_t treadle_session_num_outputs(const treadle_session* session);
TREADLE_C_API const char* treadle_session_input_name(const treadle_session* session, size_t index); /* NULL beyond the last */
TREADLE_C_API const char* treadle_session_output_name(const treadle_session* session, size_t index);
TREADLE_C_API const char* treadle_session_input_type(const treadle_session* session, size_t index); /* "tensor(float)" */
TREADLE_C_API const char* treadle_session_output_type(const treadle_session* session, size_t index);
/* Writes the profile; `*out_path` is valid until the session is released. */
TREADLE_C_API treadle_status* treadle_session_end_profiling(treadle_session* session, const char** out_path);

/* Records the runs that begin from now on, even if enable_profiling was 0, and drops earlier records. */
TREADLE_C_API treadle_status* treadle_session_start_profiling(treadle_session* session);
/* Writes the records so far. The extension decides the format: .json, .html, .csv, .pftrace (Perfetto), .trace.json (Chrome, PyTorch),
   .folded, .speedscope.json, .onnxruntime.json. Recording continues. */
TREADLE_C_API treadle_status* treadle_session_save_profile(treadle_session* session, const char* path);

/* Writes how often each node has run, and its times, as a JSON list (docs/profiling.md). Requires the session config entry
   "treadle.node_counters" = "1". */
TREADLE_C_API treadle_status* treadle_session_save_node_counters(const treadle_session* session, const char* path);
TREADLE_C_API treadle_status* treadle_session_reset_node_counters(const treadle_session* session);

/* Metrics of the process: runs, times, errors, caches and memory of all sessions, trainers and modules (docs/metrics.md). */
/* Begins (1) or stops (0) to count the runs of the whole process. */
TREADLE_C_API treadle_status* treadle_count_metrics(int on);
/* Calls the function once, on this thread, with the metrics of now in Prometheus' text format. The text ends with a zero byte. */
TREADLE_C_API treadle_status* treadle_metrics_read(void (*report)(void* context, const char* text, size_t size_bytes), void* context);
/* Counts metrics, and writes them to a file every `seconds` (at least 0.01) and when the reporter is released. The file is replaced in one
   step. */
TREADLE_C_API treadle_status* treadle_metrics_report_to_file(const char* path, double seconds, treadle_metrics_reporter** out);
/* The same, but calls a function, from a thread of the reporter. */
TREADLE_C_API treadle_status* treadle_metrics_report_to(void (*report)(void* context, const char* text, size_t size_bytes), void* context,
                                                        double seconds, treadle_metrics_reporter** out);
TREADLE_C_API void treadle_metrics_reporter_release(treadle_metrics_reporter* reporter);

/* A recording, in addition to the session's own and any others. Zero-initialize the options and set struct_size; zero is the default. */
typedef struct treadle_profiler treadle_profiler;
typedef struct treadle_profiler_options {
  size_t struct_size;
  uint64_t max_events;   /* capacity in events of 24 bytes, for the whole process; 0: 50,000,000 */
  int32_t keep_last;     /* at capacity: non-zero: drop the oldest events; 0: drop new ones */
  int32_t memory;        /* non-zero: also record every block of memory that is taken or returned */
  int32_t kernel_phases; /* since version 10 of the ABI; non-zero: also record phases in kernels: packing, products, epilogues */
  const char* stream_to; /* since version 11 of the ABI; file to stream events to while recording; NULL: none */
  int32_t passes;        /* since version 14 of the ABI; non-zero: nodes list the passes that made them, and the kernels not chosen */
} treadle_profiler_options;
/* Records runs from now on. `options` NULL: the defaults. The session may be released before the profiler. */
TREADLE_C_API treadle_status* treadle_profiler_start(treadle_session* session, const treadle_profiler_options* options,
                                                     treadle_profiler** out);
/* Record steps of a trainer, and forward and backward runs of a joint module. `options` NULL: the defaults. The profiler must be released
 * before them. Since version 14. */
TREADLE_C_API treadle_status* treadle_trainer_start_profiler(treadle_trainer* trainer, const treadle_profiler_options* options,
                                                             treadle_profiler** out);
TREADLE_C_API treadle_status* treadle_joint_module_start_profiler(treadle_joint_module* module, const treadle_profiler_options* options,
                                                                  treadle_profiler** out);
/* Records passes of an executor: forward and backward ones of training, or those that are not for training. `options` NULL: the defaults.
 * Since version 16. */
TREADLE_C_API treadle_status* treadle_executor_start_profiler(treadle_executor* executor, int is_train,
                                                              const treadle_profiler_options* options, treadle_profiler** out);
/* Non-zero: records runs that begin from now on; 0: pauses. */
TREADLE_C_API treadle_status* treadle_profiler_set_recording(treadle_profiler* profiler, int recording);
/* Writes the records so far, like treadle_session_save_profile(). */
TREADLE_C_API treadle_status* treadle_profiler_save(const treadle_profiler* profiler, const char* path);
/* Writes all records so far to the file `stream_to`. Fails if that is impossible, for instance if the disk is full. Since version 11. */
TREADLE_C_API treadle_status* treadle_profiler_flush(treadle_profiler* profiler);
/* Converts a file that `stream_to` wrote to a format of treadle_profiler_save(). Since version 11. */
TREADLE_C_API treadle_status* treadle_profile_convert(const char* recording, const char* path);
/* Ends the recording and frees its memory. */
TREADLE_C_API void treadle_profiler_release(treadle_profiler* profiler);

/* Marks a range of the program in all open profiles. `begin` returns a time, or 0 if no profile is open; pass it to `end`. Ranges nest, on
   any thread.

     uint64_t range = treadle_profile_range_begin();
     ...
     treadle_profile_range_end("load batch", range);

   If a profile is made while a range is open, it contains the range up to then, under the name given to begin_named(), or "(unnamed)".
   A NULL name is also "(unnamed)". */
TREADLE_C_API uint64_t treadle_profile_range_begin(void);
TREADLE_C_API void treadle_profile_range_end(const char* name, uint64_t begin);
/* Does what treadle_profile_range_begin() does, with the name that the end will have. Since version 15. */
TREADLE_C_API uint64_t treadle_profile_range_begin_named(const char* name);
/* Marks this moment in all open profiles. Since version 13 of the ABI. */
TREADLE_C_API void treadle_profile_mark(const char* name);

/* The purposes by which memory is counted. */
typedef enum treadle_memory_class {
  TREADLE_MEMORY_WEIGHTS = 0,
  TREADLE_MEMORY_PACKED = 1,
  TREADLE_MEMORY_ACTIVATIONS = 2,
  TREADLE_MEMORY_SCRATCH = 3,
  TREADLE_MEMORY_IO = 4,
  TREADLE_MEMORY_OTHER = 5,
  TREADLE_MEMORY_TOTAL = 6,
  TREADLE_MEMORY_PARAMETERS = 7, /* since version 13 of the ABI, as the next two; of trainers and joint modules */
  TREADLE_MEMORY_GRADIENTS = 8,
  TREADLE_MEMORY_OPTIMIZER_STATE = 9
} treadle_memory_class;
/* Allocators. Sessions and tensors with memory of an allocator keep it alive: `release` is called when the last of them and the handle are
 * gone. */
typedef struct treadle_allocator_callbacks {
  size_t struct_size; /* set by the caller */
  void* context;
  const char* name; /* NULL: "custom" */
  /* Returns `size_bytes` (at least 1), aligned to 64 bytes. NULL: no memory is left; the caller fails with TREADLE_RESOURCE_EXHAUSTED.
   * `memory_class`: a treadle_memory_class. Several threads may call all functions at once. */
  void* (*allocate)(void* context, size_t size_bytes, int32_t memory_class);
  void (*free)(void* context, void* data, size_t size_bytes, int32_t memory_class);
  size_t (*trim)(void* context);  /* returns idle memory to the system, and its size; may be NULL */
  void (*release)(void* context); /* may be NULL */
} treadle_allocator_callbacks;

/* If this fails, `release` is not called. */
TREADLE_C_API treadle_status* treadle_allocator_create(const treadle_allocator_callbacks* callbacks, treadle_allocator** out);
TREADLE_C_API void treadle_allocator_release(treadle_allocator* allocator);
/* Writes the bytes of this allocator in use, their peak, and the number of allocations. `bytes`, `peak_bytes` and `num_allocations` may be
 * NULL. */
TREADLE_C_API treadle_status* treadle_allocator_statistics(const treadle_allocator* allocator, int32_t memory_class, uint64_t* bytes,
                                                           uint64_t* peak_bytes, uint64_t* num_allocations);
/* Sets the allocator of an output. A run fails if it has no output of this name, or the output is bound to memory. */
TREADLE_C_API treadle_status* treadle_run_options_set_output_allocator(treadle_run_options* options, const char* output_name,
                                                                       treadle_allocator* allocator);
/* Sets the device on which an output should be after the run, named as in session options. Strings stay on the host. A run fails if it has
 * no output of this name, or the output is bound to memory. */
TREADLE_C_API treadle_status* treadle_run_options_set_output_device(treadle_run_options* options, const char* output_name,
                                                                    const char* device);

/* Writes the bytes that the session holds now, and their peak. `bytes` and `peak_bytes` may be NULL. */
TREADLE_C_API treadle_status* treadle_session_memory(const treadle_session* session, int32_t memory_class, uint64_t* bytes,
                                                     uint64_t* peak_bytes);
/* Takes effect at once for later runs, and at the next node for running ones. The session must have been made with a limit. */
TREADLE_C_API treadle_status* treadle_session_set_memory_limit(const treadle_session* session, uint64_t limit_bytes);
/* Cancels running runs, and waits for them at most this long; negative: until all have ended. Later runs end with TREADLE_CANCELLED.
 * `num_unfinished` (may be NULL) receives the number of runs that have not ended. */
TREADLE_C_API treadle_status* treadle_session_close(treadle_session* session, int64_t timeout_ms, size_t* num_unfinished);
TREADLE_C_API size_t treadle_session_runs_in_flight(const treadle_session* session);

TREADLE_C_API treadle_status* treadle_run_options_create(treadle_run_options** out);
TREADLE_C_API void treadle_run_options_release(treadle_run_options* options);
/* Non-zero: runs with these options stop with TREADLE_CANCELLED. 0: later runs are not stopped. May be called from any thread. */
TREADLE_C_API void treadle_run_options_set_terminate(treadle_run_options* options, int terminate);
TREADLE_C_API void treadle_run_options_set_deadline_ms(treadle_run_options* options, int64_t deadline_ms);
/* Sets the name of the run in reports of unfinished runs. */
TREADLE_C_API treadle_status* treadle_run_options_set_tag(treadle_run_options* options, const char* tag);
/* Since version 18 of the ABI: sets a run option from text. The key is "treadle." and the option's name (docs/options.md), such as
 * "treadle.check_finite" or "treadle.dump_folder". Other keys are stored without effect. */
TREADLE_C_API treadle_status* treadle_run_options_add_config_entry(treadle_run_options* options, const char* key, const char* value);
/* Adds a node or value to compute without fetching it; may be called several times. */
TREADLE_C_API treadle_status* treadle_run_options_add_target(treadle_run_options* options, const char* name);

/* Runs. `outputs` receives `num_outputs` new values, which the caller releases; after an error they are NULL.
 * `output_names` may be NULL if num_outputs = treadle_session_num_outputs(): all outputs, in order. `options` may be NULL. */
TREADLE_C_API treadle_status* treadle_session_run(const treadle_session* session, const treadle_run_options* options,
                                                  const char* const* input_names, const treadle_value* const* inputs, size_t num_inputs,
                                                  const char* const* output_names, size_t num_outputs, treadle_value** outputs);

/* Bound inputs and outputs, since version 19 of the ABI: a run looks nothing up and, with bound memory, allocates nothing. One thread at a
 * time may use a binding. The session must outlive it. */
TREADLE_C_API treadle_status* treadle_io_binding_create(const treadle_session* session, treadle_io_binding** out);
TREADLE_C_API void treadle_io_binding_release(treadle_io_binding* binding);
TREADLE_C_API treadle_status* treadle_io_binding_bind_input(treadle_io_binding* binding, const char* name, const treadle_value* value);
/* `memory`: a tensor that every run writes the output to; NULL: each run allocates the output, which the caller gets. */
TREADLE_C_API treadle_status* treadle_io_binding_bind_output(treadle_io_binding* binding, const char* name, const treadle_value* memory);
/* Leaves the output on a device, named as in session options, or copies it there. */
TREADLE_C_API treadle_status* treadle_io_binding_bind_output_to_device(treadle_io_binding* binding, const char* name, const char* device);
TREADLE_C_API void treadle_io_binding_clear_inputs(treadle_io_binding* binding);
TREADLE_C_API void treadle_io_binding_clear_outputs(treadle_io_binding* binding);
/* `options` may be NULL. */
TREADLE_C_API treadle_status* treadle_io_binding_run(treadle_io_binding* binding, const treadle_run_options* options);
/* The outputs of the last run, in the order of binding. `*out` is a new value, which the caller releases. */
TREADLE_C_API size_t treadle_io_binding_num_outputs(const treadle_io_binding* binding);
TREADLE_C_API treadle_status* treadle_io_binding_output(const treadle_io_binding* binding, size_t index, treadle_value** out);

/* Runs of one sequence whose states (KV caches, hidden states) pass from run to run without copies, since version 19 of the ABI. One thread
 * at a time may use one. The session must outlive it. */
typedef struct treadle_state_pair {
  const char* input;  /* gets in each run... */
  const char* output; /* ...what this output was in the run before */
} treadle_state_pair;
/* `initial_names`, `initial`: values of paired inputs for the first run; a state without one begins as zeros, if its shape is fixed. */
TREADLE_C_API treadle_status* treadle_stateful_run_create(const treadle_session* session, const treadle_state_pair* pairs, size_t num_pairs,
                                                          const char* const* initial_names, const treadle_value* const* initial,
                                                          size_t num_initial, treadle_stateful_run** out);
TREADLE_C_API void treadle_stateful_run_release(treadle_stateful_run* run);
/* Runs once, and updates the states; after an error they have their values from before. `output_names` may be NULL: all outputs that are no
 * states, in the session's order. `options` may be NULL. `outputs` receives `num_outputs` new values. */
TREADLE_C_API treadle_status* treadle_stateful_run_run(treadle_stateful_run* run, const treadle_run_options* options,
                                                       const char* const* input_names, const treadle_value* const* inputs,
                                                       size_t num_inputs, const char* const* output_names, size_t num_outputs,
                                                       treadle_value** outputs);
/* Returns the value for the paired input of the next run. Its memory is not reused while the caller holds it. */
TREADLE_C_API treadle_status* treadle_stateful_run_state(const treadle_stateful_run* run, const char* input, treadle_value** out);
TREADLE_C_API treadle_status* treadle_stateful_run_set_state(treadle_stateful_run* run, const char* input, const treadle_value* value);

/* Runs on a thread of the library, since version 19 of the ABI. `output_names` may be NULL: all outputs. Values may be released once this
 * function has returned. The session must outlive the run. */
TREADLE_C_API treadle_status* treadle_session_run_async(const treadle_session* session, const char* const* input_names,
                                                        const treadle_value* const* inputs, size_t num_inputs,
                                                        const char* const* output_names, size_t num_outputs, treadle_async_run** out);
/* Waits at most this long; negative: until the run has ended. `*finished` is 1 if it has ended, with or without an error. */
TREADLE_C_API treadle_status* treadle_async_run_wait(const treadle_async_run* run, int64_t timeout_ms, int* finished);
/* Waits for the run, and returns its error, or `num_outputs` new values. */
TREADLE_C_API treadle_status* treadle_async_run_outputs(treadle_async_run* run, size_t num_outputs, treadle_value** outputs);
TREADLE_C_API void treadle_async_run_release(treadle_async_run* run); /* waits for the run */

/* Watching, since version 19 of the ABI. A callback that returns a status fails the run with it. `release` is not called for a function
 * that fails. */
typedef struct treadle_monitor_event {
  size_t struct_size; /* set by the library */
  uint64_t run_id;
  const char* name;           /* of the value in the model */
  const char* node;           /* "" for a feed, a constant, or a value that the feeds' shapes determine */
  const char* op_type;        /* "" likewise */
  int32_t is_input;           /* 1: an input of the node, which has not run yet */
  const treadle_value* value; /* in memory that the run reuses, and valid during the callback only */
} treadle_monitor_event;
/* Calls `watch` for every value that matches `pattern` (* and ?; NULL: all), on the runs' threads, one call at a time. The optimiser
 * preserves these values. `inputs` non-zero: also before each node that reads one. `watch` NULL: watches nothing any more.
 * `release(context)` (may be NULL) is called when the monitor is no longer needed. */
TREADLE_C_API treadle_status* treadle_session_set_monitor(treadle_session* session,
                                                          treadle_status* (*watch)(void* context, const treadle_monitor_event* event),
                                                          void* context, void (*release)(void* context), const char* pattern, int inputs);

/* As treadle_session_set_monitor(), for values of all graphs that the trainer runs, gradients and updates included. */
TREADLE_C_API treadle_status* treadle_trainer_set_monitor(treadle_trainer* trainer,
                                                          treadle_status* (*watch)(void* context, const treadle_monitor_event* event),
                                                          void* context, void (*release)(void* context), const char* pattern, int inputs);

typedef enum treadle_hook_point { TREADLE_PRE_RUN = 0, TREADLE_POST_RUN = 1 } treadle_hook_point;
typedef struct treadle_hooked_run {
  size_t struct_size; /* set by the library */
  uint64_t run_id;    /* number of the run in its session */
  uint64_t graph_id;  /* of the compiled graph */
  const char* tag;
  int64_t duration_ns; /* TREADLE_POST_RUN: of the computation */
  const char* error;   /* TREADLE_POST_RUN: why the run failed; "": it did not */
} treadle_hooked_run;
/* Calls `hook` before or after every run of every session of the process, on the run's thread: groups in ascending order, a group's hooks
 * in the order of registration. `point`: a treadle_hook_point. `*id` is for treadle_unregister_hook().
 * `release(context)` (may be NULL) is called when the hook is no longer needed. */
TREADLE_C_API treadle_status* treadle_register_hook(int32_t point, int32_t group,
                                                    treadle_status* (*hook)(void* context, const treadle_hooked_run* run), void* context,
                                                    void (*release)(void* context), uint64_t* id);
/* Runs that have begun may still call the hook. Returns 0 if there is no such hook. */
TREADLE_C_API int treadle_unregister_hook(uint64_t id);

typedef enum treadle_log_severity {
  TREADLE_LOG_VERBOSE = 0,
  TREADLE_LOG_INFO = 1,
  TREADLE_LOG_WARNING = 2,
  TREADLE_LOG_ERROR = 3,
  TREADLE_LOG_FATAL = 4
} treadle_log_severity;
/* Sends messages of at least the severity `lowest` (a treadle_log_severity) to `on_message`, one at a time, from any thread. It must not
 * call the library. `on_message` NULL: warnings and worse go to standard error, as in the beginning.
 * `release(context)` (may be NULL) is called when another callback replaces it. */
TREADLE_C_API treadle_status* treadle_set_log_callback(void (*on_message)(void* context, int32_t severity, const char* message),
                                                       void* context, void (*release)(void* context), int32_t lowest);

/* Runs that stop at every Yield node of the domain "treadle". `*finished` becomes 1 at the end of the run, otherwise 0. */
TREADLE_C_API treadle_status* treadle_partial_run_create(const treadle_session* session, const char* const* input_names,
                                                         const treadle_value* const* inputs, size_t num_inputs, treadle_partial_run** out);
TREADLE_C_API treadle_status* treadle_partial_run_advance(treadle_partial_run* run, int* finished);
/* At a Yield: return the number of values that it hands out, and each of them (a new value). */
TREADLE_C_API treadle_status* treadle_partial_run_num_yielded(const treadle_partial_run* run, size_t* out);
TREADLE_C_API treadle_status* treadle_partial_run_yielded(const treadle_partial_run* run, size_t index, treadle_value** out);
TREADLE_C_API treadle_status* treadle_partial_run_resume(treadle_partial_run* run, const treadle_value* const* values, size_t num_values,
                                                         int* finished);
TREADLE_C_API treadle_status* treadle_partial_run_outputs(treadle_partial_run* run, size_t num_outputs, treadle_value** outputs);
TREADLE_C_API void treadle_partial_run_release(treadle_partial_run* run);

/* Since version 7 of the ABI: partial runs with options. They may stop between nodes, be fed later, and return outputs before the end.
 * `options` (may be NULL) must outlive the run. Here and in treadle_partial_run_create() inputs may be omitted, if their extents are
 * declared or known from other inputs. */
TREADLE_C_API treadle_status* treadle_partial_run_create_with_options(const treadle_session* session, const treadle_run_options* options,
                                                                      const char* const* input_names, const treadle_value* const* inputs,
                                                                      size_t num_inputs, treadle_partial_run** out);
/* Feeds an input that was omitted. The run stops before a node that reads a missing input; advancing it then is an error. */
TREADLE_C_API treadle_status* treadle_partial_run_feed(treadle_partial_run* run, const char* input_name, const treadle_value* value);
/* Returns outputs, or targets of the options, that have been computed: new values, like those of treadle_session_run(). */
TREADLE_C_API treadle_status* treadle_partial_run_fetch(const treadle_partial_run* run, const char* const* output_names, size_t num_outputs,
                                                        treadle_value** outputs);
/* Runs until the node has run, or a Yield or missing input stops the run. TREADLE_NOT_FOUND: the optimized graph has no such node. */
TREADLE_C_API treadle_status* treadle_partial_run_advance_until(treadle_partial_run* run, const char* node, int* finished);
/* Runs `count` nodes, or fewer if a Yield, a missing input or the end comes first. `*steps_left` (may be NULL): nodes that can run next. */
TREADLE_C_API treadle_status* treadle_partial_run_advance_steps(treadle_partial_run* run, size_t count, size_t* steps_left);

/* Engines order operations by the variables that they read and write (docs/engine.md). An operation that fails returns a status, which the
 * engine releases and a wait returns. Operations must not wait. */
typedef treadle_status* (*treadle_operation)(void* context);
/* `naive` non-zero: operations run inside push (for debugging). `num_threads` 0: as many as usable CPUs. */
TREADLE_C_API treadle_status* treadle_engine_create(int naive, int32_t num_threads, treadle_engine** out);
TREADLE_C_API void treadle_engine_release(treadle_engine* engine); /* waits for all operations */
TREADLE_C_API treadle_status* treadle_engine_variable(treadle_engine* engine, treadle_variable** out);
TREADLE_C_API void treadle_variable_release(treadle_variable* variable);
TREADLE_C_API uint64_t treadle_variable_version(const treadle_variable* variable); /* number of operations that have written it */
/* `release(context)` (may be NULL) is called when the operation has ended, or will not run because a variable that it reads holds an error.
 * It is not called if this function fails. */
TREADLE_C_API treadle_status* treadle_engine_push(treadle_engine* engine, treadle_operation operation, void* context,
                                                  void (*release)(void* context), const treadle_variable* const* reads, size_t num_reads,
                                                  const treadle_variable* const* writes, size_t num_writes, int32_t priority);
/* Resources, which only operations that write their variable (a new handle) may use. Scratch spaces are handed out in turn.
 * treadle_scratch_get() returns at least `size_bytes`, aligned to 64 bytes, valid until the operation ends. */
TREADLE_C_API treadle_status* treadle_engine_scratch(treadle_engine* engine, treadle_scratch** out);
TREADLE_C_API treadle_status* treadle_scratch_variable(const treadle_scratch* scratch, treadle_variable** out);
TREADLE_C_API treadle_status* treadle_scratch_get(const treadle_scratch* scratch, size_t size_bytes, void** out);
TREADLE_C_API void treadle_scratch_release(treadle_scratch* scratch);
/* Writes the next numbers of a stream, uniform in [0, 1) or of the standard normal distribution. They depend only on the seed and the order
 * of pushing. */
TREADLE_C_API treadle_status* treadle_engine_random_stream(treadle_engine* engine, uint64_t seed, treadle_random_stream** out);
TREADLE_C_API treadle_status* treadle_random_stream_variable(const treadle_random_stream* stream, treadle_variable** out);
TREADLE_C_API treadle_status* treadle_random_stream_uniform(const treadle_random_stream* stream, double* values, size_t count);
TREADLE_C_API treadle_status* treadle_random_stream_normal(const treadle_random_stream* stream, double* values, size_t count);
TREADLE_C_API void treadle_random_stream_release(treadle_random_stream* stream);
TREADLE_C_API treadle_status* treadle_engine_wait_for(treadle_engine* engine, const treadle_variable* variable);
TREADLE_C_API treadle_status* treadle_engine_wait_all(treadle_engine* engine);
TREADLE_C_API treadle_status* treadle_engine_num_pending(const treadle_engine* engine, size_t* out);

/* Values. A borrowed tensor does not copy: `data` must stay alive and unchanged until `release(context)` (may be NULL) is called. `release`
 * is not called if the function fails. */
TREADLE_C_API treadle_status* treadle_tensor_create(treadle_dtype dtype, const int64_t* shape, size_t rank, treadle_value** out);
TREADLE_C_API treadle_status* treadle_tensor_borrow(treadle_dtype dtype, const int64_t* shape, size_t rank, void* data, size_t size_bytes,
                                                    void (*release)(void* context), void* context, treadle_value** out);
TREADLE_C_API treadle_status* treadle_tensor_from_strings(const int64_t* shape, size_t rank, const char* const* strings, size_t num_strings,
                                                          treadle_value** out);
TREADLE_C_API treadle_value_kind treadle_value_get_kind(const treadle_value* value);
TREADLE_C_API void treadle_value_release(treadle_value* value);
TREADLE_C_API treadle_dtype treadle_tensor_dtype(const treadle_value* value); /* TREADLE_UNDEFINED if it is no tensor */
TREADLE_C_API size_t treadle_tensor_rank(const treadle_value* value);
TREADLE_C_API const int64_t* treadle_tensor_shape(const treadle_value* value); /* rank extents */
TREADLE_C_API size_t treadle_tensor_num_elements(const treadle_value* value);
TREADLE_C_API size_t treadle_tensor_size_bytes(const treadle_value* value);
/* NULL for strings, for other kinds of values, and for device memory. */
TREADLE_C_API void* treadle_tensor_data(const treadle_value* value);
/* "cpu", or the device that has the tensor in its memory; NULL for other kinds of values. Valid as long as the value. */
TREADLE_C_API const char* treadle_tensor_device(const treadle_value* value);
/* Copies a tensor to a device's memory, so that runs on the device read it in place. `device` is named as in session options; "cpu" is the
 * host. */
TREADLE_C_API treadle_status* treadle_tensor_to_device(const treadle_value* value, const char* device, treadle_value** out);
TREADLE_C_API const char* treadle_tensor_string(const treadle_value* value, size_t index); /* NULL if there is none */
TREADLE_C_API size_t treadle_sequence_length(const treadle_value* value);
TREADLE_C_API treadle_status* treadle_sequence_get(const treadle_value* value, size_t index, treadle_value** out);

/* Values of other kinds, since version 19 of the ABI. `*out` is a new value, which shares its contents with the one that it is of. */
/* A sequence of tensors of this dtype. */
TREADLE_C_API treadle_status* treadle_sequence_create(treadle_dtype dtype, const treadle_value* const* values, size_t num_values,
                                                      treadle_value** out);
/* `content` NULL: an optional that contains nothing. */
TREADLE_C_API treadle_status* treadle_optional_create(const treadle_value* content, treadle_value** out);
/* 1 if the value is an optional that contains something. */
TREADLE_C_API int treadle_optional_has_value(const treadle_value* value);
TREADLE_C_API treadle_status* treadle_optional_get(const treadle_value* value, treadle_value** out);
/* The number of a map's entries; 0 for other kinds of values. */
TREADLE_C_API size_t treadle_map_size(const treadle_value* value);
/* The keys: an int64 or string tensor, and their values: a tensor, both 1-D in the same order. */
TREADLE_C_API treadle_status* treadle_map_keys(const treadle_value* value, treadle_value** out);
TREADLE_C_API treadle_status* treadle_map_values(const treadle_value* value, treadle_value** out);
/* Of a sparse tensor: its dense shape, an int64 tensor; the values that are not zero; and their indices, int64: [count] or [count, rank],
 * or the columns if there are row offsets. */
TREADLE_C_API treadle_status* treadle_sparse_tensor_shape(const treadle_value* value, treadle_value** out);
TREADLE_C_API treadle_status* treadle_sparse_tensor_values(const treadle_value* value, treadle_value** out);
TREADLE_C_API treadle_status* treadle_sparse_tensor_indices(const treadle_value* value, treadle_value** out);
/* TREADLE_NOT_FOUND unless the format is CSR. */
TREADLE_C_API treadle_status* treadle_sparse_tensor_row_offsets(const treadle_value* value, treadle_value** out);

/* Shapes of a session's inputs and outputs, since version 5 of the ABI. The rank is -1 if the model does not declare it, an extent -1 if it
 * is variable. A variable extent may have a symbol, whose name is the same in all values that share it; NULL: it has none. */
TREADLE_C_API int64_t treadle_session_input_rank(const treadle_session* session, size_t index);
TREADLE_C_API int64_t treadle_session_input_extent(const treadle_session* session, size_t index, size_t axis);
TREADLE_C_API const char* treadle_session_input_symbol(const treadle_session* session, size_t index, size_t axis);
TREADLE_C_API int64_t treadle_session_output_rank(const treadle_session* session, size_t index);
TREADLE_C_API int64_t treadle_session_output_extent(const treadle_session* session, size_t index, size_t axis);
TREADLE_C_API const char* treadle_session_output_symbol(const treadle_session* session, size_t index, size_t axis);

/* Representative samples: num_samples times num_inputs values, sample by sample. They are only read. */
typedef struct treadle_samples {
  size_t struct_size; /* sizeof(treadle_samples) */
  const char* const* input_names;
  size_t num_inputs;
  const treadle_value* const* values;
  size_t num_samples;
} treadle_samples;

/* Quantization (docs/quantize.md). Zero and NULL are the defaults, the same as those of `treadle quantize`. */
typedef struct treadle_quantize_options {
  size_t struct_size;         /* sizeof(treadle_quantize_options) */
  const char* mode;           /* "dynamic", "qdq" (needs samples) or "weights"; NULL: "dynamic" */
  const char* method;         /* qdq: "minmax", "percentile" or "entropy"; NULL: "minmax" */
  int32_t weight_bits;        /* weights: 4 or 8; 0: 4 */
  int64_t block_size;         /* weights: 16, 32, 64, 128 or 256; 0: 32 */
  int32_t per_tensor;         /* dynamic, qdq: one scale per weight tensor, instead of one per channel */
  int32_t asymmetric;         /* weights: with a zero point per block */
  const char* const* include; /* patterns (* and ?) of node names; none: all */
  size_t num_include;
  const char* const* exclude;
  size_t num_exclude;
} treadle_quantize_options;
/* `options` and `samples` may be NULL. `num_quantized` (may be NULL): number of quantized nodes; if 0, the new model computes the same as
 * the old one. */
TREADLE_C_API treadle_status* treadle_model_quantize(const treadle_model* model, const treadle_quantize_options* options,
                                                     const treadle_samples* samples, size_t* num_quantized, treadle_model** out);

/* Finds the fastest precision whose largest error over the samples, relative to the largest value of an output, is at most `bound`
 * (docs/precision.md). Its name is the value of the session option "treadle.precision". */
TREADLE_C_API treadle_status* treadle_choose_precision(const treadle_model* model, double bound, const treadle_samples* samples,
                                                       treadle_precision_choice** out);
TREADLE_C_API const char* treadle_precision_name(const treadle_precision_choice* choice);
TREADLE_C_API double treadle_precision_error(const treadle_precision_choice* choice);
TREADLE_C_API double treadle_precision_speedup(const treadle_precision_choice* choice); /* relative to float32 */
TREADLE_C_API void treadle_precision_release(treadle_precision_choice* choice);

/* Trainers (docs/training.md). Options are text, named as there: {"optimizer", "adamw"}, {"learning_rate", "0.001"},
 * {"schedule", "cosine"}, {"total_steps", "1000"}, {"output", "logits"}. Lists are separated by commas; "session.NAME" is the session
 * option NAME. `options` may be NULL with num_options 0. One thread at a time may use a trainer. */
TREADLE_C_API treadle_status* treadle_trainer_create(const treadle_model* model, const treadle_config_entry* options, size_t num_options,
                                                     treadle_trainer** out);
TREADLE_C_API void treadle_trainer_release(treadle_trainer* trainer);
/* Runs the forward pass, the backward pass and the update. `labels` NULL: the loss has none. `run_options` and `loss` may be NULL; `loss`
 * receives the loss before the update. */
TREADLE_C_API treadle_status* treadle_trainer_step(treadle_trainer* trainer, const treadle_run_options* run_options,
                                                   const char* const* input_names, const treadle_value* const* inputs, size_t num_inputs,
                                                   const treadle_value* labels, double* loss);
/* Computes the loss with running statistics and without Dropout; changes nothing. `labels` and `run_options` may be NULL, and `loss`. */
TREADLE_C_API treadle_status* treadle_trainer_evaluate(treadle_trainer* trainer, const treadle_run_options* run_options,
                                                       const char* const* input_names, const treadle_value* const* inputs,
                                                       size_t num_inputs, const treadle_value* labels, double* loss);
/* Computes the model's outputs, in order; num_outputs must be treadle_trainer_num_outputs(). New values, which the caller releases.
 * `run_options` may be NULL. */
TREADLE_C_API treadle_status* treadle_trainer_predict(treadle_trainer* trainer, const treadle_run_options* run_options,
                                                      const char* const* input_names, const treadle_value* const* inputs, size_t num_inputs,
                                                      size_t num_outputs, treadle_value** outputs);
TREADLE_C_API size_t treadle_trainer_num_outputs(const treadle_trainer* trainer);
TREADLE_C_API const char* treadle_trainer_output_name(const treadle_trainer* trainer, size_t index); /* NULL beyond the last */
TREADLE_C_API uint64_t treadle_trainer_num_steps(const treadle_trainer* trainer);
TREADLE_C_API int64_t treadle_trainer_num_updates(const treadle_trainer* trainer);
/* Return the factor by which the loss is scaled with {"session.precision", "float16"} (otherwise 1), and the number of steps skipped for an
 * infinite or NaN gradient. Such a step succeeds, but changes only these two numbers. */
TREADLE_C_API double treadle_trainer_loss_scale(const treadle_trainer* trainer);
TREADLE_C_API uint64_t treadle_trainer_num_skipped(const treadle_trainer* trainer);
TREADLE_C_API double treadle_trainer_learning_rate(const treadle_trainer* trainer); /* before the schedule */
TREADLE_C_API treadle_status* treadle_trainer_set_learning_rate(treadle_trainer* trainer, double rate);
/* Parameters, ordered by name. The value uses the trainer's own memory: it changes with each step, may be written between steps, and must
 * not be used after the trainer is released. */
TREADLE_C_API size_t treadle_trainer_num_parameters(const treadle_trainer* trainer);
TREADLE_C_API const char* treadle_trainer_parameter_name(const treadle_trainer* trainer, size_t index); /* NULL beyond the last */
TREADLE_C_API treadle_status* treadle_trainer_parameter(const treadle_trainer* trainer, const char* name, treadle_value** out);
/* Writes the model with the trained parameters, for inference in any runtime. Adapters are merged into their weights. */
TREADLE_C_API treadle_status* treadle_trainer_save(const treadle_trainer* trainer, const char* path);
/* Write and load only the adapters of the option lora_rank: a safetensors file with PEFT's names and shapes. A load that fails changes
 * nothing. */
TREADLE_C_API treadle_status* treadle_trainer_save_adapters(const treadle_trainer* trainer, const char* path);
TREADLE_C_API treadle_status* treadle_trainer_load_adapters(treadle_trainer* trainer, const char* path);
/* Non-zero: evaluate, predict and save use the averages of the option ema_decay instead of parameters, until a call with 0. Meanwhile steps
 * and checkpoints fail. */
TREADLE_C_API treadle_status* treadle_trainer_use_averages(treadle_trainer* trainer, int use);
/* Writes all that training needs to continue with the same bits. `metadata` is the caller's own (may be NULL with num_entries 0). */
TREADLE_C_API treadle_status* treadle_trainer_save_checkpoint(const treadle_trainer* trainer, const char* path,
                                                              const treadle_config_entry* metadata, size_t num_entries);
/* `own_settings` non-zero: keeps the trainer's loss, schedule, learning rate and numbers. If this fails, nothing has changed. */
TREADLE_C_API treadle_status* treadle_trainer_load_checkpoint(treadle_trainer* trainer, const char* path, int own_settings);
/* Metadata of the last checkpoint loaded; NULL: it has no such entry. */
TREADLE_C_API const char* treadle_trainer_checkpoint_metadata(const treadle_trainer* trainer, const char* key);

/* Folders of checkpoints, since version 10 of the ABI: files named by step. The newest `keep_last` are kept (0: all). `asynchronous`
 * non-zero: save copies the tensors, and a thread writes them; the next save or wait returns its error. Only one process at a time may
 * write to a folder. */
TREADLE_C_API treadle_status* treadle_checkpoint_folder_open(const char* path, int32_t keep_last, int asynchronous,
                                                             treadle_checkpoint_folder** out);
/* Waits until the file that is being written is complete. */
TREADLE_C_API void treadle_checkpoint_folder_release(treadle_checkpoint_folder* folder);
TREADLE_C_API treadle_status* treadle_checkpoint_folder_save(treadle_checkpoint_folder* folder, const treadle_trainer* trainer,
                                                             const treadle_config_entry* metadata, size_t num_entries);
TREADLE_C_API treadle_status* treadle_checkpoint_folder_wait(treadle_checkpoint_folder* folder);
/* Loads the newest undamaged checkpoint, as treadle_trainer_load_checkpoint(). `path` (may be NULL) receives its path, valid until the next
 * call with this folder, or NULL if there is no checkpoint. */
TREADLE_C_API treadle_status* treadle_checkpoint_folder_resume(treadle_checkpoint_folder* folder, treadle_trainer* trainer,
                                                               int own_settings, const char** path);

/* Artifacts, since version 16 of the ABI: a folder with the trainer's optimized graphs as ONNX files, and a checkpoint (docs/training.md).
 * A library built without exporter, graph optimizer and gradients can train from them. An opened trainer continues with the same bits.
 * `options` (may be NULL) are session options only: "session.NAME". */
TREADLE_C_API treadle_status* treadle_trainer_write_artifacts(const treadle_trainer* trainer, const char* folder);
TREADLE_C_API treadle_status* treadle_trainer_open_artifacts(const char* folder, const treadle_config_entry* options, size_t num_options,
                                                             treadle_trainer** out);

/* Data files for a trainer, since version 16 of the ABI: the formats of `treadle train`, converted to the dtypes and shapes of the
 * trainer's inputs and labels. Options are text: "data" (a .npz, .safetensors, .csv or INPUT=FILE.npy, or a folder with one folder of
 * images per class; may be repeated), "labels" (an array, default "labels", a column of a .csv, or a .npy), "features" (columns of a .csv,
 * separated by commas) and "scale" (factor for floating-point inputs). `like` (may be NULL): a dataset that defines the numbers of classes.
 */
TREADLE_C_API treadle_status* treadle_dataset_open(const treadle_trainer* trainer, const treadle_config_entry* options, size_t num_options,
                                                   const treadle_dataset* like, treadle_dataset** out);
TREADLE_C_API void treadle_dataset_release(treadle_dataset* dataset); /* loaders stay valid */
TREADLE_C_API int64_t treadle_dataset_num_samples(const treadle_dataset* dataset);
/* Returns the name of a class, if labels are text or folders; NULL beyond the last. */
TREADLE_C_API const char* treadle_dataset_class_name(const treadle_dataset* dataset, size_t index);
/* Splits off a fixed random part for validation; each part has at least one sample. */
TREADLE_C_API treadle_status* treadle_dataset_split(const treadle_dataset* dataset, double fraction, uint64_t seed,
                                                    treadle_dataset** training, treadle_dataset** validation);

/* Batches of a dataset, epoch after epoch, which a thread reads ahead. Options are text: "batch_size" (32), "shuffle" (1), "seed" (0),
 * "drop_last" (0), "prefetch" (2); `options` may be NULL. */
TREADLE_C_API treadle_status* treadle_data_loader_create(const treadle_dataset* dataset, const treadle_config_entry* options,
                                                         size_t num_options, treadle_data_loader** out);
TREADLE_C_API void treadle_data_loader_release(treadle_data_loader* loader);
/* Reads a batch, which the loader holds until the next call. `*has_batch` is 0 at the end of an epoch; the following call begins the next
 * epoch. */
TREADLE_C_API treadle_status* treadle_data_loader_next(treadle_data_loader* loader, int* has_batch);
TREADLE_C_API int64_t treadle_data_loader_batch_samples(const treadle_data_loader* loader); /* in the batch; 0: no batch */
/* Returns an input of the batch, or its labels if `name` is NULL: a new value. */
TREADLE_C_API treadle_status* treadle_data_loader_value(const treadle_data_loader* loader, const char* name, treadle_value** out);
TREADLE_C_API int64_t treadle_data_loader_batches_per_epoch(const treadle_data_loader* loader);
TREADLE_C_API int64_t treadle_data_loader_epoch(const treadle_data_loader* loader); /* of the next batch, from 0 */
/* Writes the loader's position, as metadata for a checkpoint; valid until the next call with this loader. */
TREADLE_C_API treadle_status* treadle_data_loader_position(treadle_data_loader* loader, const treadle_config_entry** metadata,
                                                           size_t* num_entries);
/* Continues at the position in the checkpoint that the trainer loaded last. Data and options must be the same. */
TREADLE_C_API treadle_status* treadle_data_loader_resume(treadle_data_loader* loader, const treadle_trainer* trainer);
/* Do what treadle_trainer_step() and treadle_trainer_evaluate() do, with the loader's batch. `run_options` and `loss` may be NULL. */
TREADLE_C_API treadle_status* treadle_trainer_step_batch(treadle_trainer* trainer, const treadle_run_options* run_options,
                                                         const treadle_data_loader* loader, double* loss);
TREADLE_C_API treadle_status* treadle_trainer_evaluate_batch(treadle_trainer* trainer, const treadle_run_options* run_options,
                                                             const treadle_data_loader* loader, double* loss);

/* Joint modules, since version 10 of the ABI: a model's forward and backward graph, with the loss left to the caller (docs/training.md).
 * Options are text: those of docs/options.md ("outputs", "inputs" and so on; lists are separated by commas), and "session.NAME". One
 * thread at a time may use a module. */
TREADLE_C_API treadle_status* treadle_joint_module_create(const treadle_model* model, const treadle_config_entry* options,
                                                          size_t num_options, treadle_joint_module** out);
TREADLE_C_API void treadle_joint_module_release(treadle_joint_module* module); /* open runs stay valid */
TREADLE_C_API size_t treadle_joint_module_num_inputs(const treadle_joint_module* module);
TREADLE_C_API const char* treadle_joint_module_input_name(const treadle_joint_module* module, size_t index);
TREADLE_C_API size_t treadle_joint_module_num_outputs(const treadle_joint_module* module);
TREADLE_C_API const char* treadle_joint_module_output_name(const treadle_joint_module* module, size_t index);
/* Gradients of the parameters come first, then those of the inputs in the option "inputs". */
TREADLE_C_API size_t treadle_joint_module_num_gradients(const treadle_joint_module* module);
TREADLE_C_API const char* treadle_joint_module_gradient_name(const treadle_joint_module* module, size_t index);
/* A value in the module's own memory, as treadle_trainer_parameter(). Changes between runs take effect in the next forward pass. */
TREADLE_C_API treadle_status* treadle_joint_module_parameter(const treadle_joint_module* module, const char* name, treadle_value** out);
/* Runs the forward pass. Several runs may wait for their gradients. `run_options` (may be NULL) must outlive the run. */
TREADLE_C_API treadle_status* treadle_joint_module_forward(treadle_joint_module* module, const treadle_run_options* run_options,
                                                           const char* const* input_names, const treadle_value* const* inputs,
                                                           size_t num_inputs, treadle_joint_run** out);
TREADLE_C_API treadle_status* treadle_joint_module_save(const treadle_joint_module* module, const char* path);
TREADLE_C_API void treadle_joint_run_release(treadle_joint_run* run);
/* Returns a new value, which the caller releases. */
TREADLE_C_API treadle_status* treadle_joint_run_output(const treadle_joint_run* run, size_t index, treadle_value** out);
/* Runs the backward pass; callable once. It takes a value per float32 output with a gradient (all but "plain_outputs"); NULL means zeros.
 * `gradients` receives num_gradients values, in the order of treadle_joint_module_gradient_name(); NULL if there is no gradient. */
TREADLE_C_API treadle_status* treadle_joint_run_backward(treadle_joint_run* run, const treadle_value* const* grad_outputs,
                                                         size_t num_grad_outputs, size_t num_gradients, treadle_value** gradients);
/* After the backward pass, for a gradient of "sparse_gradients": the indices of the rows that it contains, int64, ascending. Fails for
 * other gradients. */
TREADLE_C_API treadle_status* treadle_joint_run_gradient_rows(const treadle_joint_run* run, size_t index, treadle_value** out);

/* Executors, since version 15 of the ABI: values are bound to a model's arguments (inputs and float32 initializers) once, and forward and
 * backward passes work on them in place (docs/executor.md). Memory of treadle_tensor_borrow() is used in place too, and must outlive the
 * executor. One thread at a time may use an executor and those that share graphs with it. */
typedef struct treadle_named_value {
  const char* name;
  const treadle_value* value;
} treadle_named_value;
typedef struct treadle_named_shape {
  const char* name;
  const int64_t* extents;
  size_t rank;
} treadle_named_shape;

/* Zero-initialize and set struct_size; zero is the default. */
typedef struct treadle_bind_options {
  size_t struct_size;
  const char* request;                  /* for gradients of all float32 arguments: "write", "add" or "null"; NULL: "write" */
  const treadle_config_entry* requests; /* for single arguments, by name, instead of `request` */
  size_t num_requests;
  const treadle_named_value* gradients; /* memory of gradients, by argument; missing ones are allocated as zeros */
  size_t num_gradients;
  const treadle_named_value* states; /* memory of running statistics; missing ones are copies of the model's */
  size_t num_states;
  const treadle_config_entry* session; /* session options by name; none: the defaults */
  size_t num_session;
  const char* const* row_gradients; /* parameters whose gradients are by rows: sparse tensors, new with each backward pass */
  size_t num_row_gradients;
  const treadle_executor* shared;  /* provides parameters and states that are not given and, for the same model, graphs */
  const char* const* shared_names; /* names of the values to share; NULL: all that both models have */
  size_t num_shared_names;
  /* Since version 17; only for treadle_executor_simple_bind(). */
  treadle_shared_buffer* shared_buffer; /* memory for inputs and their gradients; may be released before the executor */
  const treadle_config_entry* dtypes;   /* of inputs, such as "int32"; default: the model's */
  size_t num_dtypes;
} treadle_bind_options;

/* Memory by name, shared by all executors that are bound with it: inputs, and gradients of inputs as "grad of NAME". Executors of several
 * shapes that run in turn can share it. It grows to the largest size of each name. */
TREADLE_C_API treadle_status* treadle_shared_buffer_create(treadle_shared_buffer** out);
TREADLE_C_API void treadle_shared_buffer_release(treadle_shared_buffer* buffer);
/* Returns the number of bytes that the buffer holds. */
TREADLE_C_API size_t treadle_shared_buffer_size(const treadle_shared_buffer* buffer);

/* All inputs must be given; missing parameters have the model's values. `options` may be NULL. With `shared`, `session` and `row_gradients`
 * are that executor's, and must not be given. */
TREADLE_C_API treadle_status* treadle_executor_bind(const treadle_model* model, const treadle_named_value* arguments, size_t num_arguments,
                                                    const treadle_bind_options* options, treadle_executor** out);
/* Binds zeros to the inputs in `shapes`, and to inputs whose shapes follow from shared symbols. `options` may be NULL. */
TREADLE_C_API treadle_status* treadle_executor_simple_bind(const treadle_model* model, const treadle_named_shape* shapes, size_t num_shapes,
                                                           const treadle_bind_options* options, treadle_executor** out);
TREADLE_C_API void treadle_executor_release(treadle_executor* executor);
/* `is_train` non-zero: backward may follow; normalizations use the batch's statistics and update the running ones. `run_options` (may be
 * NULL) must live until the backward pass has ended. */
TREADLE_C_API treadle_status* treadle_executor_forward(treadle_executor* executor, int is_train, const treadle_run_options* run_options);
/* Runs one step of the forward pass, a node of the optimized graph: step 0 begins a pass, the others follow in order. `*steps_left` (may be
 * NULL) is the number left; outputs are available when it is 0. `run_options` (may be NULL) must live until the backward pass has ended. */
TREADLE_C_API treadle_status* treadle_executor_partial_forward(treadle_executor* executor, size_t step, int is_train,
                                                               const treadle_run_options* run_options, size_t* steps_left);
/* Call it once after each forward pass for training. One head gradient per output, NULL for zeros; num_head_gradients 0: all are ones. */
TREADLE_C_API treadle_status* treadle_executor_backward(treadle_executor* executor, const treadle_value* const* head_gradients,
                                                        size_t num_head_gradients);
TREADLE_C_API size_t treadle_executor_num_outputs(const treadle_executor* executor);
TREADLE_C_API const char* treadle_executor_output_name(const treadle_executor* executor, size_t index); /* NULL beyond the last */
/* Returns an output of the last pass. A new value, which the caller releases, like all values below. */
TREADLE_C_API treadle_status* treadle_executor_output(const treadle_executor* executor, size_t index, treadle_value** out);
/* Arguments and states, ordered by name. Values use the bound memory. */
TREADLE_C_API size_t treadle_executor_num_arguments(const treadle_executor* executor);
TREADLE_C_API const char* treadle_executor_argument_name(const treadle_executor* executor, size_t index);
TREADLE_C_API treadle_status* treadle_executor_argument(const treadle_executor* executor, const char* name, treadle_value** out);
/* Binds another value of the same dtype and shape. */
TREADLE_C_API treadle_status* treadle_executor_set_argument(treadle_executor* executor, const char* name, const treadle_value* value);
TREADLE_C_API size_t treadle_executor_num_states(const treadle_executor* executor);
TREADLE_C_API const char* treadle_executor_state_name(const treadle_executor* executor, size_t index);
TREADLE_C_API treadle_status* treadle_executor_state(const treadle_executor* executor, const char* name, treadle_value** out);
/* Returns "write", "add" or "null"; NULL: there is no such argument. */
TREADLE_C_API const char* treadle_executor_request(const treadle_executor* executor, const char* argument);
/* Returns a gradient. TREADLE_NOT_FOUND for an argument whose request is "null". */
TREADLE_C_API treadle_status* treadle_executor_gradient(const treadle_executor* executor, const char* argument, treadle_value** out);
/* For a gradient by rows: the indices of its rows, int64, ascending. Fails for other gradients. */
TREADLE_C_API treadle_status* treadle_executor_gradient_rows(const treadle_executor* executor, const char* argument, treadle_value** out);
/* Makes an executor for other input shapes, which shares parameters, states and memory. `partial_shaping` non-zero: inputs that are not
 * named may change with shared symbols, or keep their shapes. `allow_up_sizing` non-zero: new memory may be allocated for inputs that grow.
 */
TREADLE_C_API treadle_status* treadle_executor_reshape(const treadle_executor* executor, const treadle_named_shape* shapes,
                                                       size_t num_shapes, int partial_shaping, int allow_up_sizing, treadle_executor** out);
/* Calls `callback` for every value that matches `pattern` (* and ?; NULL: all) in forward and backward passes, before its memory is reused.
 * An error ends the run. `release(context)` (may be NULL) is called when the executor and those that share its graphs no longer need it,
 * but not if this function fails. `callback` NULL: watches nothing any more. */
TREADLE_C_API treadle_status* treadle_executor_set_monitor(treadle_executor* executor,
                                                           treadle_status* (*callback)(void* context, const char* name,
                                                                                       const treadle_value* value),
                                                           void* context, void (*release)(void* context), const char* pattern);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TREADLE_TREADLE_H_ */
