# Compiles the shaders of src/gpu/shaders into arrays of words, one for each type of elements, and lists them for src/gpu/shaders.cpp.
set(TREADLE_SHADER_FOLDER ${CMAKE_CURRENT_BINARY_DIR}/generated/shaders)
set(TREADLE_SHADER_HEADERS "")
set(list "")
set(rows "")

# A shader's file, its name, and the types it is compiled for; further arguments are definitions.
function(treadle_compile_shader file name types)
  set(source ${CMAKE_CURRENT_SOURCE_DIR}/src/gpu/shaders/${file}.comp)
  foreach(type ${types})
    string(TOUPPER ${type} macro)
    set(made ${TREADLE_SHADER_FOLDER}/${name}_${type}.h)
    add_custom_command(OUTPUT ${made}
      COMMAND ${GLSLANG_VALIDATOR} -V --quiet --target-env vulkan1.2 -I${CMAKE_CURRENT_SOURCE_DIR}/src/gpu/shaders -DELEMENT_${macro} ${ARGN}
        --vn ${name}_${type} -o ${made} ${source}
      DEPENDS ${source} ${CMAKE_CURRENT_SOURCE_DIR}/src/gpu/shaders/elements.glsl COMMENT "Compiling the shader ${name}_${type}" VERBATIM)
    list(APPEND TREADLE_SHADER_HEADERS ${made})
    string(APPEND list "#include \"shaders/${name}_${type}.h\"\n")
    string(APPEND rows "    {\"${name}_${type}\", ${name}_${type}},\n")
  endforeach()
  set(TREADLE_SHADER_HEADERS ${TREADLE_SHADER_HEADERS} PARENT_SCOPE)
  set(list "${list}" PARENT_SCOPE)
  set(rows "${rows}" PARENT_SCOPE)
endfunction()

set(floats f32 f16 bf16)
treadle_compile_shader(product product "${floats}")
treadle_compile_shader(product convolution_tile "${floats}" -DCONVOLUTION)
treadle_compile_shader(convolution convolution "${floats}")
treadle_compile_shader(pool pool "${floats}")
treadle_compile_shader(softmax softmax "${floats}")
treadle_compile_shader(normalize normalize "${floats}")
treadle_compile_shader(reduce reduce "${floats};i32;i64")
treadle_compile_shader(gather gather "b1;b2;b4")
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/generated/gpu_shaders.h CONTENT "${list}" @ONLY)
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/generated/gpu_shader_rows.inc CONTENT "${rows}" @ONLY)
file(MAKE_DIRECTORY ${TREADLE_SHADER_FOLDER})
set_property(SOURCE src/gpu/shaders.cpp PROPERTY OBJECT_DEPENDS "${TREADLE_SHADER_HEADERS}")
set_property(SOURCE src/gpu/shaders.cpp PROPERTY INCLUDE_DIRECTORIES ${CMAKE_CURRENT_BINARY_DIR}/generated)
