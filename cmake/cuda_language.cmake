# Enables CUDA in the calling folder, where there is a compiler that works; ropekit_cuda_objects()
# compiles the kernels by it.
find_program(ROPEKIT_NVCC NAMES ${CMAKE_CUDA_COMPILER} $ENV{CUDACXX} nvcc
    HINTS ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)

# Machine code for those of the GPUs of this machine, or of this list, that the toolkit knows, PTX for
# the newest, unless CMAKE_CUDA_ARCHITECTURES or CMake's variable of the environment says which.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND "$ENV{CUDAARCHS}" STREQUAL "" AND ROPEKIT_NVCC)
    execute_process(COMMAND ${ROPEKIT_NVCC} --list-gpu-arch OUTPUT_VARIABLE known)
    foreach(list IN ITEMS "${ropekit_native_architectures}" "75;80;89;90;100;120")
        foreach(architecture IN LISTS list)
            if(known MATCHES "compute_${architecture}\n")
                list(APPEND CMAKE_CUDA_ARCHITECTURES ${architecture}-real)
                set(newest ${architecture})
            endif()
        endforeach()
        if(newest)
            break()
        endif()
    endforeach()
    list(APPEND CMAKE_CUDA_ARCHITECTURES ${newest}-virtual)
endif()

# check_language() tries a compiler out unless CMAKE_CUDA_COMPILER names it, and is given by the
# environment alone what the compiler is given.
if(ROPEKIT_NVCC AND NOT DEFINED ENV{CUDACXX})
    set(ENV{CUDACXX} ${ROPEKIT_NVCC})
endif()
if(CMAKE_CUDA_HOST_COMPILER)
    set(ENV{CUDAHOSTCXX} ${CMAKE_CUDA_HOST_COMPILER})
endif()
if(CMAKE_CUDA_FLAGS)
    set(ENV{CUDAFLAGS} "${CMAKE_CUDA_FLAGS}")
endif()
include(CheckLanguage)
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    ropekit_refuse_fast_math(CUDA)
    find_package(CUDAToolkit REQUIRED GLOBAL)
endif()

# nvcc is not given the flags of C: fused operations are written out, as in every kernel.
function(ropekit_cuda_objects target)
    ropekit_gpu_objects(${target})
    set_target_properties(${target} PROPERTIES
        CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON
        CUDA_VISIBILITY_PRESET hidden)
    target_compile_options(${target} PRIVATE
        --fmad=false --ftz=false --prec-div=true --prec-sqrt=true
        -Xfatbin=-compress-all -Xptxas=--warn-on-spills,--warn-on-local-memory-usage
        -Xcompiler=-Wall,-Wextra,-fno-exceptions,-fno-threadsafe-statics
        $<$<BOOL:${ROPEKIT_WERROR}>:-Werror=all-warnings>)
    # GPUs of sm_89 run what is compiled for sm_80, but where platform/device_code_cuda.h has their conversions.
    set(others ${CMAKE_CUDA_ARCHITECTURES})
    if("80-real" IN_LIST others AND "89-real" IN_LIST others)
        list(REMOVE_ITEM others 89-real)
        set(converting ${ropekit_gpu_kernels})
        list(FILTER converting INCLUDE REGEX "/append/")
        set_property(SOURCE ${converting} APPEND PROPERTY
            COMPILE_OPTIONS --generate-code=arch=compute_89,code=[sm_89])
    endif()
    # No source tells sm_120 from sm_100: one PTX serves both, and newer GPUs.
    if("100-real" IN_LIST others AND "120-real" IN_LIST others)
        list(REMOVE_ITEM others 120-real 120-virtual)
        target_compile_options(${target} PRIVATE --generate-code=arch=compute_100,code=[compute_100,sm_120])
    endif()
    set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES "${others}")
endfunction()

# Instructions of sm_90a alone: machine code, for builds that have some of sm_90.
function(ropekit_sm90_objects target)
    if(NOT CMAKE_CUDA_ARCHITECTURES MATCHES "(^|;)90a?(-real)?(;|$)")
        return()
    endif()
    add_library(${target}_sm90 OBJECT ${ropekit_gpu_sm90_kernels})
    foreach(property COMPILE_OPTIONS INCLUDE_DIRECTORIES CUDA_STANDARD CUDA_STANDARD_REQUIRED
            CUDA_VISIBILITY_PRESET POSITION_INDEPENDENT_CODE)
        get_target_property(value ${target} ${property})
        list(FILTER value EXCLUDE REGEX "^--generate-code") # of other architectures
        set_property(TARGET ${target}_sm90 PROPERTY ${property} ${value})
    endforeach()
    set_property(TARGET ${target}_sm90 PROPERTY CUDA_ARCHITECTURES 90a-real)
endfunction()

# The runtime stays inside, whatever else a program has loaded, and needs no C++ library.
function(ropekit_cuda_plugin name objects)
    ropekit_gpu_plugin(${name} ${objects})
    if(TARGET ${objects}_sm90)
        target_sources(ropekit_${name} PRIVATE ${ropekit_gpu_sm90_host} $<TARGET_OBJECTS:${objects}_sm90>)
        target_compile_definitions(ropekit_${name} PRIVATE ROPEKIT_SM90)
    endif()
    target_include_directories(ropekit_${name} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
    target_link_libraries(ropekit_${name} PRIVATE CUDA::cudart_static)
endfunction()
