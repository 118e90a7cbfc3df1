# What the GPU backends share: the one kernel source and host code of backends/gpu. First the files that
# take a compiler longest: none is left for one processor at the end of a build.
set(ropekit_gpu_kernels attention/f16.cu attention/bf16.cu attention_backward/f16.cu attention_backward/bf16.cu
    attention/generic_f32.cu append/bf16.cu append/f16.cu attention_backward/f32.cu attention/generic_bf16.cu
    attention/generic_f16.cu rope/bf16.cu rope/f16.cu append/f32.cu attention/f32.cu rope/f32.cu rope/f64.cu
    append_backward/bf16.cu append_backward/f16.cu append_backward/f32.cu append_backward/join.cu
    attention/gather.cu attention/merge.cu decode/bf16.cu decode/f16.cu traffic.cu)
set(ropekit_gpu_host backend.c candidate.c device.c time.c traffic.c rope/candidates.c rope/launch.c
    rope/launch_generic.c rope/launch_plain.c rope/launch_plan.c rope/launch_vector.c rope/launch_window.c
    rope/lists.c append/candidates.c append/launch.c
    append/launch_generic.c append/launch_mla.c append/launch_rerotate.c append/launch_plain.c append/launch_plan.c
    append/launch_vector.c
    append_backward/candidates.c append_backward/launch.c
    attention/bind.c attention/candidates.c attention/choose.c attention/decode.c attention/gather.c
    attention/launch.c attention/merge.c attention/prologue.c attention/sizes.c attention/workspace.c
    attention_backward/candidates.c attention_backward/launch.c attention_backward/workspace.c
    decode/candidates.c decode/choose.c decode/launch.c)
set(ropekit_gpu_sm90_kernels attention/sm90/kernel.cu attention/sm90/latent.cu
    attention_backward/sm90/joint.cu attention_backward/sm90/kernel.cu attention_backward/sm90/wide.cu decode/sm90/codes.cu
    decode/sm90/kernel.cu decode/sm90/latent.cu)
set(ropekit_gpu_sm90_host attention/sm90/call.c attention/sm90/choose.c attention/sm90/latent.c
    attention/sm90/launch.c
    attention/sm90/map.c attention/sm90/schedule.c attention/sm90/spans.c
    attention_backward/sm90/launch.c decode/sm90/attention.c decode/sm90/choose.c decode/sm90/latent.c
    decode/sm90/launch.c)
list(TRANSFORM ropekit_gpu_sm90_kernels PREPEND ${PROJECT_SOURCE_DIR}/backends/gpu/)
list(TRANSFORM ropekit_gpu_sm90_host PREPEND ${PROJECT_SOURCE_DIR}/backends/gpu/)
list(TRANSFORM ropekit_gpu_kernels PREPEND ${PROJECT_SOURCE_DIR}/backends/gpu/)
list(TRANSFORM ropekit_gpu_host PREPEND ${PROJECT_SOURCE_DIR}/backends/gpu/)

# The plugin of cuDNN, whose priority is below the CPU's: "auto" never takes it.
set(ropekit_cudnn_name GPU_BACKEND_NAME="cudnn" GPU_BACKEND_PRIORITY=-10)

# The kernels. HIP's folder defines ROPEKIT_HIP, by which backends/gpu picks the platform.
function(ropekit_gpu_objects target)
    add_library(${target} OBJECT ${ropekit_gpu_kernels})
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_include_directories(${target} PRIVATE
        ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
endfunction()

# libropekit_NAME.so of the calling folder's entry.c and current.c and the objects, beside libropekit.so.
function(ropekit_gpu_plugin name objects)
    add_library(ropekit_${name} MODULE entry.c current.c ${ropekit_gpu_host} $<TARGET_OBJECTS:${objects}>)
    ropekit_target(ropekit_${name})
    target_include_directories(ropekit_${name} PRIVATE ${PROJECT_SOURCE_DIR}/include)
    target_link_options(ropekit_${name} PRIVATE
        -Wl,--exclude-libs,ALL -Wl,--as-needed -Wl,-z,defs)
    get_target_property(beside ropekit BINARY_DIR)
    if(CMAKE_LIBRARY_OUTPUT_DIRECTORY)
        set(beside ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
    endif()
    set_target_properties(ropekit_${name} PROPERTIES
        PREFIX lib
        LINKER_LANGUAGE C
        LIBRARY_OUTPUT_DIRECTORY ${beside})
    install(TARGETS ropekit_${name} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endfunction()
