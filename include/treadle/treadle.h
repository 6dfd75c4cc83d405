/* Treadle's C ABI: opaque handles, status codes with messages, no exceptions across the border. Binary-stable: functions are only added,
 * and structs carry their size. Every function that returns `treadle_status*` returns NULL on success; a status is released by the caller.
 * Handles of one session may be used from several threads at once, other handles from one thread at a time.
 * Strings that functions return live as long as the handle they were asked of.
 *
 * Arguments. A pointer may be NULL where that is said, and a list whose count is 0; contexts of callbacks always may. NULL elsewhere, a
 * handle of another kind, a number that its enum does not have and a count that no memory could hold end with TREADLE_INVALID_ARGUMENT and
 * a message that names the function and the argument, before anything has happened. Functions that return no status then return 0 or NULL,
 * and those that release leave the handle alone.
 * What the library cannot see is up to the caller: a handle that is not NULL is one that was handed out and is not released yet; a list has
 * as many elements as its count says; a text ends with a 0; memory has the size that is said, and the alignment of its elements' type. */
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

/* Grows with every addition to this header. */
#define TREADLE_ABI_VERSION 18

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

/* ONNX's numbers (TensorProto.DataType). Types of 8 bits and fewer that have a number above 16 there, up to 28, are taken as well. */
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
/* For callbacks that fail. `message` may be NULL. A code that is none of an error becomes TREADLE_INTERNAL. */
TREADLE_C_API treadle_status* treadle_status_create(treadle_code code, const char* message);
/* Since version 16 of the ABI: which TREADLE_RESOURCE_EXHAUSTED are memory that ran out, at a limit or for good. The others are limits of
 * other things: nodes of a model, states of a pattern. 0 for NULL. */
TREADLE_C_API int treadle_status_is_out_of_memory(const treadle_status* status);
TREADLE_C_API treadle_status* treadle_status_create_out_of_memory(const char* message);

/* Models. `model_dir` is where external data is looked for; NULL: external data is an error. */
TREADLE_C_API treadle_status* treadle_model_load(const char* path, treadle_model** out);
TREADLE_C_API treadle_status* treadle_model_from_bytes(const void* bytes, size_t size_bytes, const char* model_dir, treadle_model** out);
TREADLE_C_API treadle_status* treadle_model_save(const treadle_model* model, const char* path, int optimised, int opset);
TREADLE_C_API void treadle_model_release(treadle_model* model);

/* A session config entry; docs/options.md lists the keys that have a meaning. */
typedef struct treadle_config_entry {
  const char* key;
  const char* value;
} treadle_config_entry;

/* Sessions. Zero-initialise the options and set struct_size; a zero means the default. */
typedef struct treadle_session_options {
  size_t struct_size;
  int32_t intra_op_num_threads; /* 0: the process's shared pool */
  int32_t disable_optimisation; /* non-zero: the graph runs as written */
  int32_t loose_symbols;        /* what zero means, too, since version 12 of the ABI: a symbol may have different values in
                                   different inputs; "treadle.strict_symbols" makes it an error */
  int32_t enable_profiling;
  const char* profile_file_prefix;
  const char* backends;  /* subgraph backends, as in treadle/plugin.h: "onednn,other.property"; NULL: none */
  treadle_job* job;      /* job that runs belong to; NULL: the one that the environment names, if any */
  const char* allocator; /* of all memory: "plain", "arena", "guard", "nan", "pattern", "recording", joined by "+"; NULL: the system */
  uint64_t memory_limit_bytes;                /* for weights, activations and outputs until they are handed over; 0: none */
  const char* spill_folder;                   /* folder for values that do not fit; NULL: the one for temporary files */
  const treadle_config_entry* config_entries; /* "treadle.device", "treadle.group2ctx" and others; after all of the above */
  size_t num_config_entries;
  treadle_allocator* custom_allocator; /* in place of `allocator`; NULL: none */
  int32_t own_weights;                 /* non-zero: weights are not shared with other sessions of the process */
} treadle_session_options;

/* Jobs: names under which sessions run, to share a device; docs/sharing.md. A session keeps its job. Changes act within one node. */
typedef enum treadle_job_class { TREADLE_GUARANTEED = 0, TREADLE_OPPORTUNISTIC = 1 } treadle_job_class;

typedef struct treadle_job_status {
  size_t struct_size; /* set by the caller */
  uint64_t id;
  int64_t pid;
  char name[48];
  int32_t job_class;      /* treadle_job_class */
  int32_t suspended;      /* 0 or 1 */
  double share_percent;   /* as set */
  double granted_percent; /* what the coordinator's policy leaves; the smaller of both counts */
  uint64_t running, runs; /* runs under way, and ended */
  uint64_t run_ns, idle_ns, gave_way_ns, average_step_ns;
  uint64_t memory_limit_bytes, device_bytes, host_bytes, moved_bytes;
  uint64_t host_limit_bytes, disk_bytes;
} treadle_job_status;

/* `name` NULL: the program's name. `job_class`: of treadle_job_class. `memory_limit_bytes` 0: none. */
TREADLE_C_API treadle_status* treadle_job_create(const char* name, int32_t job_class, double share_percent, uint64_t memory_limit_bytes,
                                                 treadle_job** out);
TREADLE_C_API void treadle_job_release(treadle_job* job);
TREADLE_C_API treadle_status* treadle_job_get_status(const treadle_job* job, treadle_job_status* out);
TREADLE_C_API treadle_status* treadle_job_set_share(treadle_job* job, double share_percent);
TREADLE_C_API treadle_status* treadle_job_set_suspended(treadle_job* job, int suspended);
TREADLE_C_API treadle_status* treadle_job_set_memory_limit(treadle_job* job, uint64_t bytes);
/* Limit of the host's memory, also for values that have no room on a device; 0: none. */
TREADLE_C_API treadle_status* treadle_job_set_host_limit(treadle_job* job, uint64_t bytes);
/* All jobs of this user on this machine: fills up to `capacity` entries, whose struct_size the caller has set, and says how many there are.
 */
TREADLE_C_API treadle_status* treadle_jobs_list(treadle_job_status* out, size_t capacity, size_t* num_jobs);
/* A job of any process of this user. */
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
/* Writes the profile; `*out_path` lives until the session is released. */
TREADLE_C_API treadle_status* treadle_session_end_profiling(treadle_session* session, const char** out_path);

/* Records the runs that begin from now on, also where enable_profiling was 0; what was recorded before is left out. */
TREADLE_C_API treadle_status* treadle_session_start_profiling(treadle_session* session);
/* Writes what has been recorded since, by the end of the name: .json, .html, .csv, .pftrace (Perfetto), .trace.json (Chrome, PyTorch),
   .folded, .speedscope.json, .onnxruntime.json. Recording goes on. */
TREADLE_C_API treadle_status* treadle_session_save_profile(treadle_session* session, const char* path);

/* How often each node has run and how long it took, in every run: a JSON list (docs/profiling.md). The session needs the config entry
   "treadle.node_counters" with the value "1". */
TREADLE_C_API treadle_status* treadle_session_save_node_counters(const treadle_session* session, const char* path);
TREADLE_C_API treadle_status* treadle_session_reset_node_counters(const treadle_session* session);

/* A profile beside that one: any number at once. Zero-initialise the options and set struct_size; a zero means the default. */
typedef struct treadle_profiler treadle_profiler;
typedef struct treadle_profiler_options {
  size_t struct_size;
  uint64_t max_events;   /* room for so many of 24 bytes, of the whole process; 0: 50,000,000 */
  int32_t keep_last;     /* when there is no more room: non-zero: the oldest go; 0: new ones are not recorded */
  int32_t memory;        /* non-zero: every block of memory that is taken or given back, too */
  int32_t kernel_phases; /* since version 10 of the ABI; non-zero: what kernels do, too: packing, products, epilogues */
  const char* stream_to; /* since version 11 of the ABI; a file to which events are written while they are recorded; NULL: none */
  int32_t passes; /* since version 14 of the ABI; non-zero: nodes name the passes that made them, and kernels that do not compute them */
} treadle_profiler_options;
/* Records runs from now on. `options` NULL: the defaults. The session may be released before the profiler. */
TREADLE_C_API treadle_status* treadle_profiler_start(treadle_session* session, const treadle_profiler_options* options,
                                                     treadle_profiler** out);
/* Steps of a trainer, and forward and backward runs of a joint module. `options` NULL: the defaults. The profiler must be released before
 * them. Since version 14. */
TREADLE_C_API treadle_status* treadle_trainer_start_profiler(treadle_trainer* trainer, const treadle_profiler_options* options,
                                                             treadle_profiler** out);
TREADLE_C_API treadle_status* treadle_joint_module_start_profiler(treadle_joint_module* module, const treadle_profiler_options* options,
                                                                  treadle_profiler** out);
/* Passes of an executor: forward and backward ones of training, or those that are not for training. `options` NULL: the defaults. Since
 * version 16. */
TREADLE_C_API treadle_status* treadle_executor_start_profiler(treadle_executor* executor, int is_train,
                                                              const treadle_profiler_options* options, treadle_profiler** out);
/* Non-zero: runs that begin from now on are recorded; 0: they are not. */
TREADLE_C_API treadle_status* treadle_profiler_set_recording(treadle_profiler* profiler, int recording);
/* As treadle_session_save_profile(). */
TREADLE_C_API treadle_status* treadle_profiler_save(const treadle_profiler* profiler, const char* path);
/* What has been recorded so far is in the file of `stream_to`; an error if it could not be written: the disk is full. Since version 11. */
TREADLE_C_API treadle_status* treadle_profiler_flush(treadle_profiler* profiler);
/* A file that `stream_to` wrote, as treadle_profiler_save() writes files. Since version 11. */
TREADLE_C_API treadle_status* treadle_profile_convert(const char* recording, const char* path);
/* Ends the recording and gives its memory back. */
TREADLE_C_API void treadle_profiler_release(treadle_profiler* profiler);

/* Marks a range of the program in all profiles that are being taken: begin returns a time, 0 where none is, which end is given. Ranges
   nest, on any thread.

     uint64_t range = treadle_profile_range_begin();
     ...
     treadle_profile_range_end("load batch", range);

   A range that is still open when a profile is made is in it up to then: as "(unnamed)", or with the name that begin_named() was given.
   A NULL name is "(unnamed)", too. */
TREADLE_C_API uint64_t treadle_profile_range_begin(void);
TREADLE_C_API void treadle_profile_range_end(const char* name, uint64_t begin);
/* As treadle_profile_range_begin(), with the name that the end will have. Since version 15. */
TREADLE_C_API uint64_t treadle_profile_range_begin_named(const char* name);
/* Marks this moment in all profiles that are being taken. Since version 13 of the ABI. */
TREADLE_C_API void treadle_profile_mark(const char* name);

/* Classes of memory. */
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
/* Allocators. Sessions, and tensors whose memory came from one, keep it: `release` is called when the last of them and the handle are gone.
 */
typedef struct treadle_allocator_callbacks {
  size_t struct_size; /* set by the caller */
  void* context;
  const char* name; /* NULL: "custom" */
  /* At least 1 byte, at a multiple of 64; NULL if there is none: what needed it ends with TREADLE_RESOURCE_EXHAUSTED. `memory_class`: of
   * treadle_memory_class. All functions are called by several threads at once. */
  void* (*allocate)(void* context, size_t size_bytes, int32_t memory_class);
  void (*free)(void* context, void* data, size_t size_bytes, int32_t memory_class);
  size_t (*trim)(void* context);  /* gives idle memory back and tells how much; NULL: nothing */
  void (*release)(void* context); /* NULL: nothing */
} treadle_allocator_callbacks;

/* On an error `release` is not called. */
TREADLE_C_API treadle_status* treadle_allocator_create(const treadle_allocator_callbacks* callbacks, treadle_allocator** out);
TREADLE_C_API void treadle_allocator_release(treadle_allocator* allocator);
/* Bytes that came from it and are in use now, the most so far, and how often it was asked. `bytes`, `peak_bytes` and `num_allocations` may
 * be NULL. */
TREADLE_C_API treadle_status* treadle_allocator_statistics(const treadle_allocator* allocator, int32_t memory_class, uint64_t* bytes,
                                                           uint64_t* peak_bytes, uint64_t* num_allocations);
/* Allocator of an output. A run that has no output of this name, or has it bound to memory, ends with an error. */
TREADLE_C_API treadle_status* treadle_run_options_set_output_allocator(treadle_run_options* options, const char* output_name,
                                                                       treadle_allocator* allocator);
/* Where an output is after the run: a device as sessions call it. Strings stay on the host. A run that has no output of this name, or has
 * it bound to memory, ends with an error. */
TREADLE_C_API treadle_status* treadle_run_options_set_output_device(treadle_run_options* options, const char* output_name,
                                                                    const char* device);

/* Bytes that the session holds now, and the most so far. `bytes` and `peak_bytes` may be NULL. */
TREADLE_C_API treadle_status* treadle_session_memory(const treadle_session* session, int32_t memory_class, uint64_t* bytes,
                                                     uint64_t* peak_bytes);
/* Takes effect at once for later runs, and at the next node for runs under way. The session must have been made with a limit. */
TREADLE_C_API treadle_status* treadle_session_set_memory_limit(const treadle_session* session, uint64_t limit_bytes);
/* Cancels the runs in flight and waits for them, at most this long; negative: until all have ended. Later runs end with TREADLE_CANCELLED.
 * `*num_unfinished` (may be NULL) receives the number of runs that have not ended. */
TREADLE_C_API treadle_status* treadle_session_close(treadle_session* session, int64_t timeout_ms, size_t* num_unfinished);
TREADLE_C_API size_t treadle_session_runs_in_flight(const treadle_session* session);

TREADLE_C_API treadle_status* treadle_run_options_create(treadle_run_options** out);
TREADLE_C_API void treadle_run_options_release(treadle_run_options* options);
/* From any thread: runs that use these options stop with TREADLE_CANCELLED. 0 lets later runs go. */
TREADLE_C_API void treadle_run_options_set_terminate(treadle_run_options* options, int terminate);
TREADLE_C_API void treadle_run_options_set_deadline_ms(treadle_run_options* options, int64_t deadline_ms);
/* Name of the run in reports of unfinished runs. */
TREADLE_C_API treadle_status* treadle_run_options_set_tag(treadle_run_options* options, const char* tag);
/* Since version 18 of the ABI: any option of runs that a text can set, by the key "treadle." and its name (docs/options.md), such as
 * "treadle.check_finite" and "treadle.dump_folder". Keys of others are kept. */
TREADLE_C_API treadle_status* treadle_run_options_add_config_entry(treadle_run_options* options, const char* key, const char* value);
/* Nodes or values to compute without fetching them; may be called several times. */
TREADLE_C_API treadle_status* treadle_run_options_add_target(treadle_run_options* options, const char* name);

/* Runs. `outputs` receives `num_outputs` new values, which the caller releases; on an error they are NULL.
 * `output_names` NULL with num_outputs = treadle_session_num_outputs: all, in order. `options` may be NULL. */
TREADLE_C_API treadle_status* treadle_session_run(const treadle_session* session, const treadle_run_options* options,
                                                  const char* const* input_names, const treadle_value* const* inputs, size_t num_inputs,
                                                  const char* const* output_names, size_t num_outputs, treadle_value** outputs);

/* Runs that stop at every Yield node of the domain "treadle". `*finished` tells whether the run is at its end. */
TREADLE_C_API treadle_status* treadle_partial_run_create(const treadle_session* session, const char* const* input_names,
                                                         const treadle_value* const* inputs, size_t num_inputs, treadle_partial_run** out);
TREADLE_C_API treadle_status* treadle_partial_run_advance(treadle_partial_run* run, int* finished);
/* At a Yield: how many values it hands out, and each of them (a new value). */
TREADLE_C_API treadle_status* treadle_partial_run_num_yielded(const treadle_partial_run* run, size_t* out);
TREADLE_C_API treadle_status* treadle_partial_run_yielded(const treadle_partial_run* run, size_t index, treadle_value** out);
TREADLE_C_API treadle_status* treadle_partial_run_resume(treadle_partial_run* run, const treadle_value* const* values, size_t num_values,
                                                         int* finished);
TREADLE_C_API treadle_status* treadle_partial_run_outputs(treadle_partial_run* run, size_t num_outputs, treadle_value** outputs);
TREADLE_C_API void treadle_partial_run_release(treadle_partial_run* run);

/* Since version 7 of the ABI: partial runs with options, which stop between nodes, take feeds later and give outputs before the end.
 * `options` (may be NULL) must live as long as the run. Inputs may be left out here and in treadle_partial_run_create, if their extents are
 * declared or other inputs tell them. */
TREADLE_C_API treadle_status* treadle_partial_run_create_with_options(const treadle_session* session, const treadle_run_options* options,
                                                                      const char* const* input_names, const treadle_value* const* inputs,
                                                                      size_t num_inputs, treadle_partial_run** out);
/* An input that was left out. The run stops before a node that reads one which is still missing; to advance it then is an error. */
TREADLE_C_API treadle_status* treadle_partial_run_feed(treadle_partial_run* run, const char* input_name, const treadle_value* value);
/* Outputs, or targets of the options, that have been made: new values, as of treadle_session_run. */
TREADLE_C_API treadle_status* treadle_partial_run_fetch(const treadle_partial_run* run, const char* const* output_names, size_t num_outputs,
                                                        treadle_value** outputs);
/* Until the node has run, or to a Yield, or to a missing input, if that comes first. TREADLE_NOT_FOUND: the optimised graph has no such
 * node. */
TREADLE_C_API treadle_status* treadle_partial_run_advance_until(treadle_partial_run* run, const char* node, int* finished);
/* So many nodes; fewer where a Yield, a missing input or the end comes first. `*steps_left` (may be NULL): how many can run now. */
TREADLE_C_API treadle_status* treadle_partial_run_advance_steps(treadle_partial_run* run, size_t count, size_t* steps_left);

/* Engines order operations by the variables that they read and write (docs/engine.md). An operation that fails returns a status, which the
 * engine releases; it surfaces at the wait. Waits are not for operations. */
typedef treadle_status* (*treadle_operation)(void* context);
/* `naive` non-zero: operations run inside push, to debug. `num_threads` 0: as many as usable CPUs. */
TREADLE_C_API treadle_status* treadle_engine_create(int naive, int32_t num_threads, treadle_engine** out);
TREADLE_C_API void treadle_engine_release(treadle_engine* engine); /* waits for all operations */
TREADLE_C_API treadle_status* treadle_engine_variable(treadle_engine* engine, treadle_variable** out);
TREADLE_C_API void treadle_variable_release(treadle_variable* variable);
TREADLE_C_API uint64_t treadle_variable_version(const treadle_variable* variable); /* how many operations have written it */
/* `release(context)` is called (may be NULL) when the operation is over, or will not run because what it reads holds an error; not if this
 * fails. */
TREADLE_C_API treadle_status* treadle_engine_push(treadle_engine* engine, treadle_operation operation, void* context,
                                                  void (*release)(void* context), const treadle_variable* const* reads, size_t num_reads,
                                                  const treadle_variable* const* writes, size_t num_writes, int32_t priority);
/* Resources: to be used within operations that write their variable (a new handle), elsewhere an error. Scratch space is handed out in turn
 * and holds at least `size_bytes` at a multiple of 64 until the operation ends. */
TREADLE_C_API treadle_status* treadle_engine_scratch(treadle_engine* engine, treadle_scratch** out);
TREADLE_C_API treadle_status* treadle_scratch_variable(const treadle_scratch* scratch, treadle_variable** out);
TREADLE_C_API treadle_status* treadle_scratch_get(const treadle_scratch* scratch, size_t size_bytes, void** out);
TREADLE_C_API void treadle_scratch_release(treadle_scratch* scratch);
/* The next numbers of a stream, uniform in [0, 1) or of the standard normal distribution: they depend on the seed and the order of pushing
 * only. */
TREADLE_C_API treadle_status* treadle_engine_random_stream(treadle_engine* engine, uint64_t seed, treadle_random_stream** out);
TREADLE_C_API treadle_status* treadle_random_stream_variable(const treadle_random_stream* stream, treadle_variable** out);
TREADLE_C_API treadle_status* treadle_random_stream_uniform(const treadle_random_stream* stream, double* values, size_t count);
TREADLE_C_API treadle_status* treadle_random_stream_normal(const treadle_random_stream* stream, double* values, size_t count);
TREADLE_C_API void treadle_random_stream_release(treadle_random_stream* stream);
TREADLE_C_API treadle_status* treadle_engine_wait_for(treadle_engine* engine, const treadle_variable* variable);
TREADLE_C_API treadle_status* treadle_engine_wait_all(treadle_engine* engine);
TREADLE_C_API treadle_status* treadle_engine_num_pending(const treadle_engine* engine, size_t* out);

/* Values. A borrowed tensor does not copy: `data` must stay alive and unchanged until `release(context)` is called (may be NULL); it is not
 * called if this fails. */
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
/* NULL for strings, for other kinds, and for a device's memory. */
TREADLE_C_API void* treadle_tensor_data(const treadle_value* value);
/* "cpu", or the device whose memory the tensor lies in; NULL for other kinds. Lives as long as the value. */
TREADLE_C_API const char* treadle_tensor_device(const treadle_value* value);
/* The elements in memory of a device, as sessions call it, from where runs on it take them without a copy over the bus; "cpu": on the
 * host. */
TREADLE_C_API treadle_status* treadle_tensor_to_device(const treadle_value* value, const char* device, treadle_value** out);
TREADLE_C_API const char* treadle_tensor_string(const treadle_value* value, size_t index); /* NULL if there is none */
TREADLE_C_API size_t treadle_sequence_length(const treadle_value* value);
TREADLE_C_API treadle_status* treadle_sequence_get(const treadle_value* value, size_t index, treadle_value** out);

/* Shapes of a session's inputs and outputs, since version 5 of the ABI. The rank is -1 if the model does not say. An extent is -1 if it is
 * open; then it may have a symbol's name, the same in all values that share the extent; NULL: it has none. */
TREADLE_C_API int64_t treadle_session_input_rank(const treadle_session* session, size_t index);
TREADLE_C_API int64_t treadle_session_input_extent(const treadle_session* session, size_t index, size_t axis);
TREADLE_C_API const char* treadle_session_input_symbol(const treadle_session* session, size_t index, size_t axis);
TREADLE_C_API int64_t treadle_session_output_rank(const treadle_session* session, size_t index);
TREADLE_C_API int64_t treadle_session_output_extent(const treadle_session* session, size_t index, size_t axis);
TREADLE_C_API const char* treadle_session_output_symbol(const treadle_session* session, size_t index, size_t axis);

/* Samples of what a model sees in use: num_samples times num_inputs values, all of the first sample first. They are only read. */
typedef struct treadle_samples {
  size_t struct_size; /* sizeof(treadle_samples) */
  const char* const* input_names;
  size_t num_inputs;
  const treadle_value* const* values;
  size_t num_samples;
} treadle_samples;

/* Quantisation (docs/quantize.md). Zero and NULL are the defaults, as `treadle quantize` has them. */
typedef struct treadle_quantize_options {
  size_t struct_size;         /* sizeof(treadle_quantize_options) */
  const char* mode;           /* "dynamic", "qdq" (needs samples) or "weights"; NULL: "dynamic" */
  const char* method;         /* qdq: "minmax", "percentile" or "entropy"; NULL: "minmax" */
  int32_t weight_bits;        /* weights: 4 or 8; 0: 4 */
  int64_t block_size;         /* weights: 16, 32, 64, 128 or 256; 0: 32 */
  int32_t per_tensor;         /* dynamic, qdq: one scale for each weight, instead of one for each channel */
  int32_t asymmetric;         /* weights: a zero point for each block */
  const char* const* include; /* patterns (* and ?) over names of nodes; none: all */
  size_t num_include;
  const char* const* exclude;
  size_t num_exclude;
} treadle_quantize_options;
/* `options` and `samples` may be NULL. `num_quantized` (may be NULL): how many nodes; with 0 the new model computes what the old one did.
 */
TREADLE_C_API treadle_status* treadle_model_quantize(const treadle_model* model, const treadle_quantize_options* options,
                                                     const treadle_samples* samples, size_t* num_quantized, treadle_model** out);

/* The fastest precision whose largest error over the samples, relative to the largest value of an output, is at most `bound`
 * (docs/precision.md). Its name is the value of the session option "treadle.precision". */
TREADLE_C_API treadle_status* treadle_choose_precision(const treadle_model* model, double bound, const treadle_samples* samples,
                                                       treadle_precision_choice** out);
TREADLE_C_API const char* treadle_precision_name(const treadle_precision_choice* choice);
TREADLE_C_API double treadle_precision_error(const treadle_precision_choice* choice);
TREADLE_C_API double treadle_precision_speedup(const treadle_precision_choice* choice); /* over float32 */
TREADLE_C_API void treadle_precision_release(treadle_precision_choice* choice);

/* Trainers (docs/training.md). Options are text, by the names that they have there: {"optimizer", "adamw"}, {"learning_rate", "0.001"},
 * {"schedule", "cosine"}, {"total_steps", "1000"}, {"output", "logits"}; lists are separated by commas; "session.NAME" is the option NAME
 * of sessions. `options` may be NULL with num_options 0. One thread at a time may use a trainer. */
TREADLE_C_API treadle_status* treadle_trainer_create(const treadle_model* model, const treadle_config_entry* options, size_t num_options,
                                                     treadle_trainer** out);
TREADLE_C_API void treadle_trainer_release(treadle_trainer* trainer);
/* Forward, backward and update. `labels` NULL: the loss has none. `run_options` and `loss` may be NULL; `loss` is that before the update.
 */
TREADLE_C_API treadle_status* treadle_trainer_step(treadle_trainer* trainer, const treadle_run_options* run_options,
                                                   const char* const* input_names, const treadle_value* const* inputs, size_t num_inputs,
                                                   const treadle_value* labels, double* loss);
/* The loss with running statistics and without Dropout; changes nothing. `labels` and `run_options` may be NULL, and `loss`. */
TREADLE_C_API treadle_status* treadle_trainer_evaluate(treadle_trainer* trainer, const treadle_run_options* run_options,
                                                       const char* const* input_names, const treadle_value* const* inputs,
                                                       size_t num_inputs, const treadle_value* labels, double* loss);
/* The model's outputs, in order; num_outputs must be treadle_trainer_num_outputs(). New values, which the caller releases. `run_options`
 * may be NULL. */
TREADLE_C_API treadle_status* treadle_trainer_predict(treadle_trainer* trainer, const treadle_run_options* run_options,
                                                      const char* const* input_names, const treadle_value* const* inputs, size_t num_inputs,
                                                      size_t num_outputs, treadle_value** outputs);
TREADLE_C_API size_t treadle_trainer_num_outputs(const treadle_trainer* trainer);
TREADLE_C_API const char* treadle_trainer_output_name(const treadle_trainer* trainer, size_t index); /* NULL beyond the last */
TREADLE_C_API uint64_t treadle_trainer_num_steps(const treadle_trainer* trainer);
TREADLE_C_API int64_t treadle_trainer_num_updates(const treadle_trainer* trainer);
/* By which the loss is multiplied with {"session.precision", "float16"}, otherwise 1; and the steps that were skipped as a gradient was
 * infinite or NaN. Such a step succeeds, and changes nothing but these two. */
TREADLE_C_API double treadle_trainer_loss_scale(const treadle_trainer* trainer);
TREADLE_C_API uint64_t treadle_trainer_num_skipped(const treadle_trainer* trainer);
TREADLE_C_API double treadle_trainer_learning_rate(const treadle_trainer* trainer); /* before the schedule */
TREADLE_C_API treadle_status* treadle_trainer_set_learning_rate(treadle_trainer* trainer, double rate);
/* Parameters in the order of their names. The value is over the trainer's own memory: it changes with each step, may be written between
 * steps, and must not be used after the trainer is released. */
TREADLE_C_API size_t treadle_trainer_num_parameters(const treadle_trainer* trainer);
TREADLE_C_API const char* treadle_trainer_parameter_name(const treadle_trainer* trainer, size_t index); /* NULL beyond the last */
TREADLE_C_API treadle_status* treadle_trainer_parameter(const treadle_trainer* trainer, const char* name, treadle_value** out);
/* The model with the trained parameters, adapters merged into their weights, for inference in any runtime. */
TREADLE_C_API treadle_status* treadle_trainer_save(const treadle_trainer* trainer, const char* path);
/* The adapters of the option lora_rank alone: a safetensors file with PEFT's names and shapes. On an error nothing has changed. */
TREADLE_C_API treadle_status* treadle_trainer_save_adapters(const treadle_trainer* trainer, const char* path);
TREADLE_C_API treadle_status* treadle_trainer_load_adapters(treadle_trainer* trainer, const char* path);
/* Non-zero: the averages of the option ema_decay take the parameters' place, to evaluate, predict and save, until a call with 0. Steps and
 * checkpoints are refused meanwhile. */
TREADLE_C_API treadle_status* treadle_trainer_use_averages(treadle_trainer* trainer, int use);
/* Everything that training needs to continue with the same bits. `metadata` is the caller's own (NULL with num_entries 0). */
TREADLE_C_API treadle_status* treadle_trainer_save_checkpoint(const treadle_trainer* trainer, const char* path,
                                                              const treadle_config_entry* metadata, size_t num_entries);
/* `own_settings` non-zero: loss, schedule, learning rate and numbers stay the trainer's. On an error nothing has changed. */
TREADLE_C_API treadle_status* treadle_trainer_load_checkpoint(treadle_trainer* trainer, const char* path, int own_settings);
/* Of the checkpoint that was loaded last; NULL: it has no such entry. */
TREADLE_C_API const char* treadle_trainer_checkpoint_metadata(const treadle_trainer* trainer, const char* key);

/* Folders of checkpoints, since version 10 of the ABI: files named by steps, of which the newest `keep_last` stay (0: all). `asynchronous`
 * non-zero: save copies the tensors and returns, and a thread writes them; what fails there, the next save or wait reports. One process may
 * write to a folder at a time. */
TREADLE_C_API treadle_status* treadle_checkpoint_folder_open(const char* path, int32_t keep_last, int asynchronous,
                                                             treadle_checkpoint_folder** out);
/* Waits for the file that is being written. */
TREADLE_C_API void treadle_checkpoint_folder_release(treadle_checkpoint_folder* folder);
TREADLE_C_API treadle_status* treadle_checkpoint_folder_save(treadle_checkpoint_folder* folder, const treadle_trainer* trainer,
                                                             const treadle_config_entry* metadata, size_t num_entries);
TREADLE_C_API treadle_status* treadle_checkpoint_folder_wait(treadle_checkpoint_folder* folder);
/* Loads the newest checkpoint that is not damaged, as treadle_trainer_load_checkpoint. `path` (may be NULL) becomes the file's, until the
 * next call with this folder, or NULL if there is no checkpoint. */
TREADLE_C_API treadle_status* treadle_checkpoint_folder_resume(treadle_checkpoint_folder* folder, treadle_trainer* trainer,
                                                               int own_settings, const char** path);

/* Artifacts, since version 16 of the ABI: the trainer's graphs as ONNX files, optimised, and a checkpoint, in a folder (docs/training.md).
 * A library without exporter, optimiser and gradients trains from them. A trainer that opens them goes on where the other one was, with the
 * same bits. `options`, which may be NULL, are those of sessions alone: "session.NAME". */
TREADLE_C_API treadle_status* treadle_trainer_write_artifacts(const treadle_trainer* trainer, const char* folder);
TREADLE_C_API treadle_status* treadle_trainer_open_artifacts(const char* folder, const treadle_config_entry* options, size_t num_options,
                                                             treadle_trainer** out);

/* Data in files for a trainer, since version 16 of the ABI: what `treadle train` reads, in the dtypes and shapes of the trainer's inputs
 * and labels. Options are text: "data" (a .npz, .safetensors, .csv or INPUT=FILE.npy; a folder with a folder of pictures for each class;
 * may be repeated), "labels" (an array, "labels" by default, a column of a .csv, or a .npy), "features" (columns of a .csv, separated by
 * commas) and "scale" (a factor for floating-point inputs). `like` may be NULL: a dataset whose classes have the same numbers in this one.
 */
TREADLE_C_API treadle_status* treadle_dataset_open(const treadle_trainer* trainer, const treadle_config_entry* options, size_t num_options,
                                                   const treadle_dataset* like, treadle_dataset** out);
TREADLE_C_API void treadle_dataset_release(treadle_dataset* dataset); /* loaders stay valid */
TREADLE_C_API int64_t treadle_dataset_num_samples(const treadle_dataset* dataset);
/* Names, where labels are text or folders; NULL beyond the last. */
TREADLE_C_API const char* treadle_dataset_class_name(const treadle_dataset* dataset, size_t index);
/* A fixed random part of the samples to validate with, at least one in each. */
TREADLE_C_API treadle_status* treadle_dataset_split(const treadle_dataset* dataset, double fraction, uint64_t seed,
                                                    treadle_dataset** training, treadle_dataset** validation);

/* Batches of a dataset, epoch after epoch, which a thread reads ahead. Options are text: "batch_size" (32), "shuffle" (1), "seed" (0),
 * "drop_last" (0), "prefetch" (2); `options` may be NULL. */
TREADLE_C_API treadle_status* treadle_data_loader_create(const treadle_dataset* dataset, const treadle_config_entry* options,
                                                         size_t num_options, treadle_data_loader** out);
TREADLE_C_API void treadle_data_loader_release(treadle_data_loader* loader);
/* Reads a batch, which the loader holds until the next call. `has_batch` becomes 0 at the end of an epoch; the call after that begins the
 * next one. */
TREADLE_C_API treadle_status* treadle_data_loader_next(treadle_data_loader* loader, int* has_batch);
TREADLE_C_API int64_t treadle_data_loader_batch_samples(const treadle_data_loader* loader); /* of the batch; 0: there is none */
/* An input of the batch, or with `name` NULL its labels: a new value. */
TREADLE_C_API treadle_status* treadle_data_loader_value(const treadle_data_loader* loader, const char* name, treadle_value** out);
TREADLE_C_API int64_t treadle_data_loader_batches_per_epoch(const treadle_data_loader* loader);
TREADLE_C_API int64_t treadle_data_loader_epoch(const treadle_data_loader* loader); /* of the next batch, from 0 */
/* Where the loader is, as metadata of a checkpoint; until the next call with this loader. */
TREADLE_C_API treadle_status* treadle_data_loader_position(treadle_data_loader* loader, const treadle_config_entry** metadata,
                                                           size_t* num_entries);
/* Goes on where the checkpoint says that the trainer loaded last. The data and options must be the same. */
TREADLE_C_API treadle_status* treadle_data_loader_resume(treadle_data_loader* loader, const treadle_trainer* trainer);
/* treadle_trainer_step and treadle_trainer_evaluate with the loader's batch. `run_options` and `loss` may be NULL. */
TREADLE_C_API treadle_status* treadle_trainer_step_batch(treadle_trainer* trainer, const treadle_run_options* run_options,
                                                         const treadle_data_loader* loader, double* loss);
TREADLE_C_API treadle_status* treadle_trainer_evaluate_batch(treadle_trainer* trainer, const treadle_run_options* run_options,
                                                             const treadle_data_loader* loader, double* loss);

/* Joint modules, since version 10 of the ABI: a model's forward and backward graph, with the loss left to the caller (docs/training.md).
 * Options are text: those of docs/options.md ("outputs", "inputs" and so on; lists are separated by commas), and "session.NAME". One
 * thread at a time may use a module. */
TREADLE_C_API treadle_status* treadle_joint_module_create(const treadle_model* model, const treadle_config_entry* options,
                                                          size_t num_options, treadle_joint_module** out);
TREADLE_C_API void treadle_joint_module_release(treadle_joint_module* module); /* runs in flight stay valid */
TREADLE_C_API size_t treadle_joint_module_num_inputs(const treadle_joint_module* module);
TREADLE_C_API const char* treadle_joint_module_input_name(const treadle_joint_module* module, size_t index);
TREADLE_C_API size_t treadle_joint_module_num_outputs(const treadle_joint_module* module);
TREADLE_C_API const char* treadle_joint_module_output_name(const treadle_joint_module* module, size_t index);
/* Parameters, then the option "inputs". */
TREADLE_C_API size_t treadle_joint_module_num_gradients(const treadle_joint_module* module);
TREADLE_C_API const char* treadle_joint_module_gradient_name(const treadle_joint_module* module, size_t index);
/* Over the module's own memory, as treadle_trainer_parameter: written between runs, the next forward pass reads it. */
TREADLE_C_API treadle_status* treadle_joint_module_parameter(const treadle_joint_module* module, const char* name, treadle_value** out);
/* Runs to the outputs. Several runs may wait for their gradients. `run_options` may be NULL, and must outlive the run. */
TREADLE_C_API treadle_status* treadle_joint_module_forward(treadle_joint_module* module, const treadle_run_options* run_options,
                                                           const char* const* input_names, const treadle_value* const* inputs,
                                                           size_t num_inputs, treadle_joint_run** out);
TREADLE_C_API treadle_status* treadle_joint_module_save(const treadle_joint_module* module, const char* path);
TREADLE_C_API void treadle_joint_run_release(treadle_joint_run* run);
/* A new value, which the caller releases. */
TREADLE_C_API treadle_status* treadle_joint_run_output(const treadle_joint_run* run, size_t index, treadle_value** out);
/* The backward pass, once. One value for each float32 output that a gradient flows into (all but "plain_outputs"); NULL stands for zeros.
 * `gradients` has room for num_gradients values, in the order of treadle_joint_module_gradient_name(); NULL where nothing flows back. */
TREADLE_C_API treadle_status* treadle_joint_run_backward(treadle_joint_run* run, const treadle_value* const* grad_outputs,
                                                         size_t num_grad_outputs, size_t num_gradients, treadle_value** gradients);
/* After backward, of a gradient of "sparse_gradients", which has rows of it: which rows these are, int64, ascending. An error for others.
 */
TREADLE_C_API treadle_status* treadle_joint_run_gradient_rows(const treadle_joint_run* run, size_t index, treadle_value** out);

/* Executors, since version 15 of the ABI: values are bound to a model's arguments (inputs and float32 initializers) once, and forward and
 * backward passes work on them in place (docs/executor.md). Memory of treadle_tensor_borrow() is read and written where it lies, and must
 * outlive the executor. One thread at a time may use an executor, and those that share graphs with it. */
typedef struct treadle_named_value {
  const char* name;
  const treadle_value* value;
} treadle_named_value;
typedef struct treadle_named_shape {
  const char* name;
  const int64_t* extents;
  size_t rank;
} treadle_named_shape;

/* Zero-initialise and set struct_size; a zero means the default. */
typedef struct treadle_bind_options {
  size_t struct_size;
  const char* request;                  /* of the gradients of all float32 arguments: "write", "add" or "null"; NULL: "write" */
  const treadle_config_entry* requests; /* of single ones, by argument */
  size_t num_requests;
  const treadle_named_value* gradients; /* memory of gradients, by argument; zeros are made where it is missing */
  size_t num_gradients;
  const treadle_named_value* states; /* memory of running statistics; a copy of the model's where it is missing */
  size_t num_states;
  const treadle_config_entry* session; /* options of sessions by name; none: the defaults */
  size_t num_session;
  const char* const* row_gradients; /* parameters whose gradients are by rows: sparse tensors, new with each backward pass */
  size_t num_row_gradients;
  const treadle_executor* shared;  /* its parameters and states are used where no others are given; of the same model also its graphs */
  const char* const* shared_names; /* which of them; NULL: all that both models have */
  size_t num_shared_names;
  /* Since version 17, of treadle_executor_simple_bind() only. */
  treadle_shared_buffer* shared_buffer; /* where inputs and their gradients lie; may be released before the executor */
  const treadle_config_entry* dtypes;   /* of inputs, as "int32"; the model's where none is given */
  size_t num_dtypes;
} treadle_bind_options;

/* Memory by name: inputs, and gradients of inputs as "grad of NAME", of all executors that are bound with it lie in the same places where
 * they fit, so that executors of several shapes that take turns share it. Grows with the largest of each. */
TREADLE_C_API treadle_status* treadle_shared_buffer_create(treadle_shared_buffer** out);
TREADLE_C_API void treadle_shared_buffer_release(treadle_shared_buffer* buffer);
/* Bytes that it holds. */
TREADLE_C_API size_t treadle_shared_buffer_size(const treadle_shared_buffer* buffer);

/* All inputs are given; parameters that are missing have the model's values. `options` may be NULL. With `shared`, `session` and
 * `row_gradients` are that executor's, and must not be given. */
TREADLE_C_API treadle_status* treadle_executor_bind(const treadle_model* model, const treadle_named_value* arguments, size_t num_arguments,
                                                    const treadle_bind_options* options, treadle_executor** out);
/* With zeros for inputs of these shapes, and of those that follow from the symbols they share. `options` may be NULL. */
TREADLE_C_API treadle_status* treadle_executor_simple_bind(const treadle_model* model, const treadle_named_shape* shapes, size_t num_shapes,
                                                           const treadle_bind_options* options, treadle_executor** out);
TREADLE_C_API void treadle_executor_release(treadle_executor* executor);
/* `is_train` non-zero: backward may follow; normalisations use the batch's statistics and update the running ones. `run_options` may be
 * NULL, and must live until the backward pass has ended. */
TREADLE_C_API treadle_status* treadle_executor_forward(treadle_executor* executor, int is_train, const treadle_run_options* run_options);
/* One step of the forward pass, a node of the optimised graph: step 0 begins a pass, the others follow in order. `*steps_left` (may be
 * NULL) is how many are left; the outputs are there when none is. `run_options` may be NULL, and must live as treadle_executor_forward()
 * says. */
TREADLE_C_API treadle_status* treadle_executor_partial_forward(treadle_executor* executor, size_t step, int is_train,
                                                               const treadle_run_options* run_options, size_t* steps_left);
/* Once for each forward pass for training. One head gradient for each output, NULL for zeros; num_head_gradients 0: all are ones. */
TREADLE_C_API treadle_status* treadle_executor_backward(treadle_executor* executor, const treadle_value* const* head_gradients,
                                                        size_t num_head_gradients);
TREADLE_C_API size_t treadle_executor_num_outputs(const treadle_executor* executor);
TREADLE_C_API const char* treadle_executor_output_name(const treadle_executor* executor, size_t index); /* NULL beyond the last */
/* Of the last pass. A new value, which the caller releases, as are all that follow. */
TREADLE_C_API treadle_status* treadle_executor_output(const treadle_executor* executor, size_t index, treadle_value** out);
/* Arguments and states in the order of their names. Values are over the memory that is bound. */
TREADLE_C_API size_t treadle_executor_num_arguments(const treadle_executor* executor);
TREADLE_C_API const char* treadle_executor_argument_name(const treadle_executor* executor, size_t index);
TREADLE_C_API treadle_status* treadle_executor_argument(const treadle_executor* executor, const char* name, treadle_value** out);
/* Binds another value of the same dtype and shape. */
TREADLE_C_API treadle_status* treadle_executor_set_argument(treadle_executor* executor, const char* name, const treadle_value* value);
TREADLE_C_API size_t treadle_executor_num_states(const treadle_executor* executor);
TREADLE_C_API const char* treadle_executor_state_name(const treadle_executor* executor, size_t index);
TREADLE_C_API treadle_status* treadle_executor_state(const treadle_executor* executor, const char* name, treadle_value** out);
/* "write", "add" or "null"; NULL: there is no such argument. */
TREADLE_C_API const char* treadle_executor_request(const treadle_executor* executor, const char* argument);
/* TREADLE_NOT_FOUND for an argument whose request is "null". */
TREADLE_C_API treadle_status* treadle_executor_gradient(const treadle_executor* executor, const char* argument, treadle_value** out);
/* Of one by rows: which rows its values are, int64, ascending. An error for others. */
TREADLE_C_API treadle_status* treadle_executor_gradient_rows(const treadle_executor* executor, const char* argument, treadle_value** out);
/* An executor for inputs of other shapes, which shares parameters, states and memory. `partial_shaping` non-zero: inputs that are not named
 * may change by the symbols they share, or keep their shapes; `allow_up_sizing` non-zero: new memory may be made for inputs that grow. */
TREADLE_C_API treadle_status* treadle_executor_reshape(const treadle_executor* executor, const treadle_named_shape* shapes,
                                                       size_t num_shapes, int partial_shaping, int allow_up_sizing, treadle_executor** out);
/* Calls back with every value that matches `pattern` (* and ?; NULL: all) in forward and backward passes, before its memory is used again.
 * An error ends the run. `release(context)` is called (may be NULL) when the executor and those that share its graphs have no more use for
 * it; not if this fails. `callback` NULL: nothing is watched any more. */
TREADLE_C_API treadle_status* treadle_executor_set_monitor(treadle_executor* executor,
                                                           treadle_status* (*callback)(void* context, const char* name,
                                                                                       const treadle_value* value),
                                                           void* context, void (*release)(void* context), const char* pattern);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TREADLE_TREADLE_H_ */
