# SPDX-License-Identifier: Apache-2.0
# The test programs, all behind the target 'tests' so that a plain build does not make them.
# build/tests/list has a line "area program kind" for each, which scripts/test.sh runs; kind is "threads"
# if the source starts any, and "plain" otherwise.

enable_testing()
add_custom_target(tests)
set(test_list "")

add_library(test_harness STATIC EXCLUDE_FROM_ALL tests/harness/test_main.c tests/harness/ranks.c tests/harness/session.c)
target_include_directories(test_harness PUBLIC include tests tests/harness)
target_link_libraries(test_harness PUBLIC Threads::Threads)

function(test_kind kind_out)
    set(kind plain)
    set(starts "TEST_RANKS|ranks_run|boot_world|pthread_create|twi_team_create|MM_TEST_THREADS|std::thread|AscendC")
    foreach(source ${ARGN})
        file(STRINGS ${source} uses REGEX "${starts}")
        if(uses)
            set(kind threads)
        endif()
    endforeach()
    set(${kind_out} ${kind} PARENT_SCOPE)
endfunction()

# test_program(AREA NAME KIND SOURCE...): a program build/tests/NAME with the harness and all of twi_*.
function(test_program area name kind)
    add_executable(${name} EXCLUDE_FROM_ALL ${ARGN})
    target_link_libraries(${name} PRIVATE test_harness tilewire_internal)
    target_compile_definitions(${name} PRIVATE TEST_BUILD_DIR="${PROJECT_BINARY_DIR}"
        TEST_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    add_dependencies(tests ${name})
    add_test(NAME ${name} COMMAND ${name})
    set(test_list "${test_list}${area} ${name} ${kind}\n" PARENT_SCOPE)
endfunction()

# tilewire_test(AREA NAME SOURCE...): the same of the kind that its sources say.
macro(tilewire_test area name)
    test_kind(kind ${ARGN})
    test_program(${area} ${name} ${kind} ${ARGN})
endmacro()

# A program with cases that fail, hang and crash: the proof that the harness notices.
add_executable(harness_fixture EXCLUDE_FROM_ALL tests/harness/fixture.c)
target_link_libraries(harness_fixture PRIVATE test_harness tilewire_internal)
set_target_properties(harness_fixture PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
add_dependencies(tests harness_fixture)

file(GLOB test_sources CONFIGURE_DEPENDS tests/*/test_*.c)
list(FILTER test_sources EXCLUDE REGEX "/tests/harness/")
foreach(source ${test_sources})
    get_filename_component(name ${source} NAME_WE)
    get_filename_component(area ${source} DIRECTORY)
    get_filename_component(area ${area} NAME)
    tilewire_test(${area} ${name} ${source})
endforeach()

# The engine at levels avx512bf16 and amx on machines without their instructions: programs model_NAME are the
# objects of test_NAME with the kernels of those levels on top of a model of the instructions, and a cpu layer that
# reports amx. Where the machine has no AVX-512 either, its levels are modelled, too. These objects come before the
# library, which therefore does not supply its own. Not with ThreadSanitizer: threads do the same at every level.
set(model_programs test_convert test_epilogue test_gemm_engine test_gemm_hooks test_kernels test_kernels_check
    test_kernels_scaled test_kernels_side test_matmul test_matmul_bits test_matmul_groups test_matmul_quant test_pack
    test_mm_reduce_scatter test_mm_all_reduce test_mm_all_reduce_int8 test_all_gather_mm test_gmm_alltoallv
    test_alltoallv_gmm test_ops_bits test_ops_given test_ops_lent test_ops_stream test_ops_window)
set(model_levels "avx512bf16|amx")
set(model_flags ${avx512vnni})
set(machine_lacks_avx512 ON)
if(EXISTS /proc/cpuinfo)
    file(STRINGS /proc/cpuinfo machine_vnni REGEX "^flags.* avx512_vnni" LIMIT_COUNT 1)
    if(machine_vnni)
        set(machine_lacks_avx512 OFF)
    endif()
endif()
option(TILEWIRE_MODEL_AVX512 "Tests that model instructions model those of AVX-512, too" ${machine_lacks_avx512})
if(TILEWIRE_MODEL_AVX512)
    set(model_levels "avx512|avx512vnni|${model_levels}")
    set(model_flags ${avx2} -DMODEL_AVX512 -O1 -Wno-psabi) # functions hand on vectors of 64 bytes as they can
    set_source_files_properties(tests/gemm/model_level.c PROPERTIES COMPILE_DEFINITIONS MODEL_AVX512)
    list(APPEND model_programs test_reduce test_token test_wire test_dynamic_quant)
endif()
set(model_kernels ${sources})
list(FILTER model_kernels INCLUDE REGEX "_(${model_levels})\\.c$")
if(model_kernels AND NOT TILEWIRE_FUZZ AND NOT TILEWIRE_SANITIZE STREQUAL "thread")
    set(model_sources "")
    foreach(kernel ${model_kernels})
        get_filename_component(name ${kernel} NAME)
        set(model_source ${PROJECT_BINARY_DIR}/tests/model/model_${name})
        file(GENERATE OUTPUT ${model_source} CONTENT "#include \"gemm/model_x86.h\"\n#include \"${kernel}\"\n")
        set_source_files_properties(${model_source} PROPERTIES COMPILE_OPTIONS "${model_flags}")
        list(APPEND model_sources ${model_source})
    endforeach()
    set_source_files_properties(tests/gemm/model_tiles.c PROPERTIES COMPILE_OPTIONS "${avx2}")
    add_library(tilewire_model OBJECT EXCLUDE_FROM_ALL ${model_sources} tests/gemm/model_level.c tests/gemm/model_tiles.c)
    target_include_directories(tilewire_model PRIVATE include src tests)
    macro(model_program area model kind)
        test_program(${area} ${model} ${kind} ${ARGN} $<TARGET_OBJECTS:tilewire_model>)
        set_target_properties(${model} PROPERTIES LINKER_LANGUAGE C)
        target_link_options(${model} PRIVATE -Wl,--wrap=twi_cpu_detected,--wrap=test_add)
    endmacro()
    foreach(name ${model_programs})
        string(REGEX REPLACE "^test_" "model_" model ${name})
        file(GLOB model_test tests/*/${name}.c)
        get_filename_component(area ${model_test} DIRECTORY)
        get_filename_component(area ${area} NAME)
        test_kind(kind ${model_test})
        model_program(${area} ${model} ${kind} $<TARGET_OBJECTS:${name}>)
        add_dependencies(${model} ${name})
    endforeach()
    model_program(gemm model_values plain tests/gemm/model_values.c)
endif()

# What these count happens in functions of the library.
foreach(name test_ops_stream model_ops_stream)
    if(TARGET ${name})
        target_link_options(${name} PRIVATE -Wl,--wrap=twi_gemm_streams,--wrap=twi_panels_lines)
    endif()
endforeach()

# These count for how many workers tokens are.
foreach(name test_dynamic_quant model_dynamic_quant)
    if(TARGET ${name})
        target_link_options(${name} PRIVATE -Wl,--wrap=twi_team_run)
    endif()
endforeach()

# What a kernel is found to be is what these say.
foreach(name test_kernels_check model_kernels_check)
    if(TARGET ${name})
        target_link_options(${name} PRIVATE -Wl,--wrap=twi_gemm_kernel_try,--wrap=aligned_alloc)
        target_link_options(${name} PRIVATE -Wl,--wrap=twi_gemm_tiles_begin,--wrap=twi_gemm_tiles_end)
    endif()
endforeach()

# Runs the benchmark of test_kernels, and its cases with a kernel that is wrong.
add_executable(kernels_fixture EXCLUDE_FROM_ALL tests/gemm/kernels_fixture.c $<TARGET_OBJECTS:test_kernels>)
target_link_libraries(kernels_fixture PRIVATE test_harness tilewire_internal)
target_link_options(kernels_fixture PRIVATE -Wl,--wrap=twi_gemm_f32_f32_f32_4x16x1__portable)
set_target_properties(kernels_fixture PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
add_dependencies(test_kernels_options test_kernels kernels_fixture)

target_link_options(test_arena PRIVATE -Wl,--wrap=aligned_alloc)
target_link_options(test_ops_memory PRIVATE
    -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc,--wrap=mmap,--wrap=madvise)

# Of the command, with a main of its own.
foreach(name test_bench_cores test_bench_numbers test_trace_svg)
    target_sources(${name} PRIVATE $<FILTER:$<TARGET_OBJECTS:tilewire_command>,EXCLUDE,/main\\.c>)
    target_link_libraries(${name} PRIVATE m ${CMAKE_DL_LIBS})
    target_include_directories(${name} BEFORE PRIVATE ${PROJECT_SOURCE_DIR})
endforeach()
target_link_options(test_bench_cores PRIVATE
    -Wl,--wrap=bench_hold_begin,--wrap=bench_launch,--wrap=gemm_report_header)

file(GLOB fuzz_sources CONFIGURE_DEPENDS tests/fuzz/fuzz_*.c)
foreach(source ${fuzz_sources})
    get_filename_component(target ${source} NAME_WE)
    string(REGEX REPLACE "^fuzz_" "" name ${target})
    if(TILEWIRE_FUZZ)
        add_executable(${target} EXCLUDE_FROM_ALL ${source})
        target_link_libraries(${target} PRIVATE tilewire_internal)
        target_link_options(${target} PRIVATE -fsanitize=fuzzer)
    else()
        set(target replay_${name})
        tilewire_test(fuzz ${target} ${source})
        target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests/fuzz/replay_main.c)
        target_compile_definitions(${target} PRIVATE REPLAY_CORPUS="${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${name}")
    endif()
    target_compile_options(${target} PRIVATE -Wno-missing-prototypes)
    set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    add_dependencies(tests ${target})
endforeach()

if(EXISTS ${PROJECT_SOURCE_DIR}/tests/ascendc/CMakeLists.txt AND CMAKE_CXX_COMPILER)
    add_subdirectory(tests/ascendc EXCLUDE_FROM_ALL)
    get_property(targets DIRECTORY tests/ascendc PROPERTY BUILDSYSTEM_TARGETS)
    foreach(target ${targets})
        add_dependencies(tests ${target})
        if(target MATCHES "^test_" AND NOT test_list MATCHES " ${target} ")
            set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
            string(APPEND test_list "ascendc ${target} threads\n")
        endif()
    endforeach()
endif()

file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/tests/list CONTENT "${test_list}")
