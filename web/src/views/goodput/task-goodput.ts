/** The goodput of a task by the setting `price`. */
import { useQuery } from "@tanstack/react-query";
import { useTimeline } from "../../state/cluster";

const REFRESH_MS = 5000;

export function useGoodput(task: string, running: boolean) {
  const timeline = useTimeline();
  return useQuery({
    queryKey: ["goodput", task],
    queryFn: ({ signal }) => timeline.goodput({ task }, signal),
    refetchInterval: running ? REFRESH_MS : false,
    retry: false,
  });
}
