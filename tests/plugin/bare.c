/* A shared object that is no plugin: it exports no entry. */
int ropekit_test_bare(void);

int ropekit_test_bare(void) {
    return 0;
}
