// Implements the engines of the C ABI.
#include "treadle/engine.h"

#include <memory>
#include <vector>

#include "c_api/arguments.h"
#include "c_api/context.h"
#include "c_api/status.h"

using treadle::Engine;
using namespace treadle::c_api;

struct treadle_engine : Handle<treadle_engine> {
  Engine engine;
};

struct treadle_variable : Handle<treadle_variable> {
  Engine::Variable variable;
};

struct treadle_scratch : Handle<treadle_scratch> {
  Engine::Scratch scratch;
};

struct treadle_random_stream : Handle<treadle_random_stream> {
  Engine::RandomStream stream;
};

namespace {

constexpr int kMostThreads = 4096;  // maximum, as for sessions

Argument each_variable(const treadle_variable* const* variables, size_t count, const char* name) {
  return list_of(variables, count, name, [](const treadle_variable* variable) { return handle(variable, ""); });
}

std::vector<Engine::Variable> to_variables(const treadle_variable* const* variables, size_t count) {
  std::vector<Engine::Variable> made;
  for (size_t i = 0; i < count; ++i) made.push_back(variables[i]->variable);
  return made;
}

}  // namespace

extern "C" {

treadle_status* treadle_engine_create(int naive, int32_t num_threads, treadle_engine** out) {
  return call(__func__, {within(num_threads, 0, kMostThreads, "num_threads", "0 to 4096"), needed(out, "out")}, [&] {
    *out = new treadle_engine{{}, Engine({.naive = naive != 0, .num_threads = num_threads})};
  });
}

void treadle_engine_release(treadle_engine* engine) { dispose(engine); }

treadle_status* treadle_engine_variable(treadle_engine* engine, treadle_variable** out) {
  return call(__func__, {handle(engine, "engine"), needed(out, "out")},
              [&] { *out = make<treadle_variable>(engine->engine.variable()).release(); });
}

void treadle_variable_release(treadle_variable* variable) { dispose(variable); }

uint64_t treadle_variable_version(const treadle_variable* variable) {
  return asked<uint64_t>(variable, 0, [](const treadle_variable& v) { return v.variable.version(); });
}

treadle_status* treadle_engine_push(treadle_engine* engine, treadle_operation operation, void* context, void (*release)(void* context),
                                    const treadle_variable* const* reads, size_t num_reads, const treadle_variable* const* writes,
                                    size_t num_writes, int32_t priority) {
  return call(__func__,
              {handle(engine, "engine"), needed(operation != nullptr, "operation"), each_variable(reads, num_reads, "reads"),
               each_variable(writes, num_writes, "writes")},
              [&] {
                auto kept = std::make_shared<CallbackContext>();
                kept->context = context;
                kept->release = release;
                auto body = [kept, operation] { check(operation(kept->context)); };
                try {
                  engine->engine.push(std::move(body), to_variables(reads, num_reads), to_variables(writes, num_writes), priority);
                } catch (...) {
                  kept->release = nullptr;
                  throw;
                }
              });
}

treadle_status* treadle_engine_scratch(treadle_engine* engine, treadle_scratch** out) {
  return call(__func__, {handle(engine, "engine"), needed(out, "out")},
              [&] { *out = make<treadle_scratch>(engine->engine.scratch()).release(); });
}

treadle_status* treadle_scratch_variable(const treadle_scratch* scratch, treadle_variable** out) {
  return call(__func__, {handle(scratch, "scratch"), needed(out, "out")},
              [&] { *out = make<treadle_variable>(scratch->scratch.variable()).release(); });
}

treadle_status* treadle_scratch_get(const treadle_scratch* scratch, size_t size_bytes, void** out) {
  return call(__func__, {handle(scratch, "scratch"), needed(out, "out")}, [&] { *out = scratch->scratch.get(size_bytes); });
}

void treadle_scratch_release(treadle_scratch* scratch) { dispose(scratch); }

treadle_status* treadle_engine_random_stream(treadle_engine* engine, uint64_t seed, treadle_random_stream** out) {
  return call(__func__, {handle(engine, "engine"), needed(out, "out")},
              [&] { *out = make<treadle_random_stream>(engine->engine.random_stream(seed)).release(); });
}

treadle_status* treadle_random_stream_variable(const treadle_random_stream* stream, treadle_variable** out) {
  return call(__func__, {handle(stream, "stream"), needed(out, "out")},
              [&] { *out = make<treadle_variable>(stream->stream.variable()).release(); });
}

treadle_status* treadle_random_stream_uniform(const treadle_random_stream* stream, double* values, size_t count) {
  return call(__func__, {handle(stream, "stream"), list(values, count, "values")}, [&] { stream->stream.uniform({values, count}); });
}

treadle_status* treadle_random_stream_normal(const treadle_random_stream* stream, double* values, size_t count) {
  return call(__func__, {handle(stream, "stream"), list(values, count, "values")}, [&] { stream->stream.normal({values, count}); });
}

void treadle_random_stream_release(treadle_random_stream* stream) { dispose(stream); }

treadle_status* treadle_engine_wait_for(treadle_engine* engine, const treadle_variable* variable) {
  return call(__func__, {handle(engine, "engine"), handle(variable, "variable")}, [&] { engine->engine.wait_for(variable->variable); });
}

treadle_status* treadle_engine_wait_all(treadle_engine* engine) {
  return call(__func__, {handle(engine, "engine")}, [&] { engine->engine.wait_all(); });
}

treadle_status* treadle_engine_num_pending(const treadle_engine* engine, size_t* out) {
  return call(__func__, {handle(engine, "engine"), needed(out, "out")}, [&] { *out = engine->engine.num_pending(); });
}

}  // extern "C"
