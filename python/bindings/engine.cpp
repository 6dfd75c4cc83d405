// Binds Engine, which executes operations in the order that their reads and writes of variables require.
#include "treadle/engine.h"

#include <nanobind/stl/shared_ptr.h>

#include "datum.h"
#include "numpy.h"
#include "session.h"

namespace treadle::python {
namespace {

// A C++ exception that holds the Python exception of an operation. The engine may rethrow it several times before Python gets it.
struct PythonFailure : std::exception {
  explicit PythonFailure(nb::object given) : exception(keep(std::move(given))) {}
  const char* what() const noexcept override { return "an operation raised"; }
  std::shared_ptr<nb::object> exception;
};

// The Python class Engine. Methods that wait for operations release the GIL, because the operations need it.
struct PyEngine {
  explicit PyEngine(const EngineOptions& options) : engine(std::make_unique<Engine>(options)) {}
  ~PyEngine() {
    nb::gil_scoped_release release;
    engine.reset();
  }
  std::unique_ptr<Engine> engine;
};

void push(PyEngine& self, nb::object function, const std::vector<Engine::Variable>& reads, const std::vector<Engine::Variable>& writes,
          int priority) {
  auto kept = keep(std::move(function));
  nb::gil_scoped_release release;
  self.engine->push(
      [kept] {
        nb::gil_scoped_acquire gil;
        try {
          (*kept)();
        } catch (nb::python_error& error) {
          throw PythonFailure(nb::borrow(error.value()));
        }
      },
      reads, writes, priority);
}

template <typename Wait>
void waiting(Wait&& wait) {
  std::shared_ptr<nb::object> raised;
  try {
    nb::gil_scoped_release release;
    wait();
  } catch (const PythonFailure& failure) {
    raised = failure.exception;
  }
  if (!raised) return;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised->ptr())), raised->ptr());
  throw nb::python_error();
}

nb::object numbers_of(const Engine::RandomStream& stream, int64_t count, void (Engine::RandomStream::*fill)(std::span<double>) const) {
  if (count < 0) throw Error(ErrorCode::invalid_argument, std::to_string(count) + " numbers");
  Tensor numbers(DType::float64, Shape{count});
  (stream.*fill)(numbers.span<double>());
  return array_from_tensor(numbers);
}

}  // namespace

void register_engine(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<PyEngine> engine(module, "Engine", "Runs operations as soon as the variables that they read and write allow it.");
  nb::class_<Engine::Variable>(engine, "Variable", "Something that operations read and write.")
      .def_prop_ro("version", &Engine::Variable::version, "How many operations have written it.");
  nb::class_<Engine::Scratch>(engine, "Scratch", "Memory for as long as an operation runs; operations that use it write its variable.")
      .def_prop_ro("variable", &Engine::Scratch::variable)
      .def(
          "get",
          [](const Engine::Scratch& self, int64_t size_bytes) {
            if (size_bytes < 0) throw Error(ErrorCode::invalid_argument, std::to_string(size_bytes) + " bytes");
            return array_from_tensor(
                Tensor(DType::uint8, Shape{size_bytes},
                       Storage::borrow(self.get(static_cast<size_t>(size_bytes)), static_cast<size_t>(size_bytes), {})));
          },
          "size_bytes"_a,
          "An array of bytes, not initialised, for this operation only: it must not be kept. Within an operation that writes the "
          "variable.");
  nb::class_<Engine::RandomStream>(engine, "RandomStream", "Random numbers that depend on the seed and the order of pushing only.")
      .def_prop_ro("variable", &Engine::RandomStream::variable)
      .def(
          "uniform",
          [](const Engine::RandomStream& self, int64_t count) { return numbers_of(self, count, &Engine::RandomStream::uniform); },
          "count"_a, "The next numbers, in [0, 1). Within an operation that writes the variable.")
      .def(
          "normal", [](const Engine::RandomStream& self, int64_t count) { return numbers_of(self, count, &Engine::RandomStream::normal); },
          "count"_a, "The next numbers of the standard normal distribution. Within an operation that writes the variable.")
      .def("seed", &Engine::RandomStream::seed, "seed"_a, "Begins the stream anew. Within an operation that writes the variable.");
  engine
      .def(
          "__init__",
          [](PyEngine* self, bool naive, int num_threads, int num_scratch_spaces) {
            new (self) PyEngine({.naive = naive, .num_threads = num_threads, .num_scratch_spaces = num_scratch_spaces});
          },
          "naive"_a = false, "num_threads"_a = 0, "num_scratch_spaces"_a = 4, "naive: operations run inside push(), to debug.")
      .def(
          "scratch", [](PyEngine& self) { return self.engine->scratch(); }, "One of the engine's scratch spaces, in turn.")
      .def(
          "random_stream", [](PyEngine& self, uint64_t seed) { return self.engine->random_stream(seed); }, "seed"_a)
      .def("variable", [](PyEngine& self) { return self.engine->variable(); })
      .def("push", &push, "function"_a, "reads"_a = std::vector<Engine::Variable>(), "writes"_a = std::vector<Engine::Variable>(),
           "priority"_a = 0, "Runs function() as soon as its variables allow it. Its exception surfaces at the wait.")
      .def(
          "wait_for", [](PyEngine& self, const Engine::Variable& variable) { waiting([&] { self.engine->wait_for(variable); }); },
          "variable"_a, "Waits for the operations that write the variable, and raises its error, once.")
      .def(
          "wait_all", [](PyEngine& self) { waiting([&] { self.engine->wait_all(); }); },
          "Waits for everything, and raises the first error that no wait has raised.")
      .def_prop_ro("num_pending", [](const PyEngine& self) { return self.engine->num_pending(); });
}

}  // namespace treadle::python
