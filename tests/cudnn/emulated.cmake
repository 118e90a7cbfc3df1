# The plugin on the emulated HIP device, whose rotations are those of the emulated HIP backend, with
# engines that compute on the CPU: all that the plugin does around cuDNN's.
set(plugin ${PROJECT_SOURCE_DIR}/backends/cudnn)
set_source_files_properties(${plugin}/sequences.cu PROPERTIES LANGUAGE CXX)
add_library(ropekit_cudnn_emulated MODULE engine.c
    ${plugin}/attention.c
    ${plugin}/attention_backward.c
    ${plugin}/engines.c
    ${plugin}/entry.c
    ${plugin}/forward.c
    ${plugin}/launch.c
    ${plugin}/layout.c
    ${plugin}/slices.c
    ${plugin}/sequences.cu
    ${PROJECT_SOURCE_DIR}/backends/hip/current.c
    ${PROJECT_SOURCE_DIR}/backends/gpu/candidate.c
    ${PROJECT_SOURCE_DIR}/backends/gpu/device.c
    ${PROJECT_SOURCE_DIR}/backends/gpu/time.c)
ropekit_target(ropekit_cudnn_emulated)
target_include_directories(ropekit_cudnn_emulated PRIVATE ${PROJECT_SOURCE_DIR}/tests/hip_emulation)
target_compile_definitions(ropekit_cudnn_emulated PRIVATE ROPEKIT_HIP ${ropekit_cudnn_name} DNN_ROTATED_BY="hip" DNN_SLICE_SHIFT=10)
# Undefined behaviour ends the process, without a library that would tell more.
target_compile_options(ropekit_cudnn_emulated PRIVATE -fsanitize=undefined -fsanitize-undefined-trap-on-error
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-unknown-pragmas $<$<CXX_COMPILER_ID:GNU>:-fno-extern-tls-init>>)
target_link_libraries(ropekit_cudnn_emulated PRIVATE ropekit hip_emulation Threads::Threads m)
set_target_properties(ropekit_cudnn_emulated PROPERTIES
    PREFIX lib OUTPUT_NAME ropekit_cudnn CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/emulated)

set(environment HIP_EMULATION_WAVE=32 ROPE_TEST_CASES=120 ROPE_TEST_EMULATED=1
    ROPE_PLUGIN_PATH=$<TARGET_FILE_DIR:ropekit_cudnn_emulated>:$<TARGET_FILE_DIR:ropekit_hip_emulated>)
add_test(NAME cudnn.emulated COMMAND ropekit_tests_plain ${provided} tuning/*)
set_tests_properties(cudnn.emulated PROPERTIES SKIP_RETURN_CODE 77
    ENVIRONMENT "${environment};ROPE_BACKEND=cudnn;ROPE_TEST_REQUIRE=cudnn")
# A table that names kernels of both.
add_test(NAME cudnn.emulated.beside COMMAND ropekit_tests_plain tuning/*)
set_tests_properties(cudnn.emulated.beside PROPERTIES
    ENVIRONMENT "${environment};ROPE_BACKEND=hip;ROPE_TEST_REQUIRE=hip"
    FAIL_REGULAR_EXPRESSION "skip tuning/kernels_of_another")
# Backwards are timed with and without kernels that sum in any order, where there may be some; a kernel
# that declines is named, and one that is left out since its first run was slow.
if(ROPEKIT_BUILD_TOOL)
    add_test(NAME cudnn.emulated.tune COMMAND $<TARGET_FILE:ropekit_tool> tune --backend=hip --quick --rounds=1
        --output=${CMAKE_CURRENT_BINARY_DIR}/emulated/tuning.json)
    set_tests_properties(cudnn.emulated.tune PROPERTIES ENVIRONMENT "${environment}"
        PASS_REGULAR_EXPRESSION
        "hip:tiles is left out of [^\n]*--nondeterministic[^\n]*: every kernel declined.*(cudnn:sdpa is left out of [^\n]*--backward --nondeterministic[^\n]*: by its speed|--backward --nondeterministic[^\n]*\n   [^\n]* cudnn:sdpa )")
    # A backward of two sequences runs at once where an engine needs little memory, else in slices.
    add_test(NAME cudnn.emulated.whole COMMAND $<TARGET_FILE:ropekit_tool> verify --attention --backward
        --backend=cudnn --batch=2 --tokens=32 --q-heads=4 --k-heads=2 --head-dim=32 --dtype=bf16)
    set_tests_properties(cudnn.emulated.whole PROPERTIES ENVIRONMENT "${environment};CUDNN_EMULATION_LINEAR=1"
        PASS_REGULAR_EXPRESSION "backward of 8 heads.*passed")
endif()
