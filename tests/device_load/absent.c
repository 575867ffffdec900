/* A library that a module needs and that no loader finds. */
int absent(void);

int absent(void)
{
    return 1;
}
