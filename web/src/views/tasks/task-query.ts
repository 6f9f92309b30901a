/** The query of one task with its request. */
import { queryOptions } from "@tanstack/react-query";
import { api, bodyOf } from "../../api/client";

export const taskQuery = (id: string) =>
  queryOptions({
    queryKey: ["task", id],
    queryFn: ({ signal }) => bodyOf(api.GET("/api/tasks/{task_id}", { params: { path: { task_id: id } }, signal })),
  });
