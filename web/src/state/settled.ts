/** A value that has not changed for a while: what is asked for while something is moved. */
import { useEffect, useState } from "react";

const SETTLED_MS = 100;

/** The value once it stays; `key` says whether two values are the same. */
export function useSettled<Value>(value: Value, key: string): Value {
  const [settled, setSettled] = useState({ value, key });
  useEffect(() => {
    if (key === settled.key) return;
    const timer = setTimeout(() => setSettled({ value, key }), SETTLED_MS);
    return () => clearTimeout(timer);
  }, [value, key, settled.key]);
  return settled.value;
}
